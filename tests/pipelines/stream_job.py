"""A driver that is killed: one streaming query that copies a topic into another one, until a file tells it to stop.

One argument, JSON: `master`, `source` and `sink` (options), `checkpoint`, `stop` (the file), `once` (end at the end of the topic).
"""

import json
import sys
from pathlib import Path

from tests.spark.conftest import new_session

COLUMNS = ("value", "__key", "__eventTime", "__messageProperties")


def main() -> None:
    settings = json.loads(sys.argv[1])
    session = new_session(settings["master"])
    rows = session.readStream.format("pulsar").options(**settings["source"]).load().select(*COLUMNS)
    writer = rows.writeStream.format("pulsar").options(**settings["sink"])
    writer = writer.option("checkpointLocation", settings["checkpoint"])
    once = settings["once"]
    writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime="300 milliseconds")
    query = writer.start()
    while not query.awaitTermination(0.5):
        if not once and Path(settings["stop"]).exists():
            query.stop()


if __name__ == "__main__":
    main()
