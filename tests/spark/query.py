"""A driver that a test kills: one streaming query from a topic into Parquet files, until there is nothing new."""

import json
import os
import signal
import sys
import time

from pyspark.sql.functions import udf
from tests.spark.conftest import new_session


def main() -> None:
    settings = json.loads(sys.argv[1])
    session = new_session(settings.get("master", "local[2,3]"))
    reader = session.readStream.format("pulsar")
    for key, value in settings["options"].items():
        reader = reader.option(key, value)
    frame = reader.load()
    marker = settings.get("dies_once")
    if marker:
        # The first task that comes here dies in the middle of its rows, with its whole process.
        def die_once(value: bytes) -> bytes:
            try:
                os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return value
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGKILL)
            return value

        frame = frame.withColumn("value", udf(die_once, "binary")(frame["value"]))
    writer = frame.writeStream.format("parquet").option("checkpointLocation", settings["checkpoint"])
    query = writer.option("path", settings["rows"]).trigger(availableNow=True).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()
