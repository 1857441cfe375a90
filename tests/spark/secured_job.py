"""Reads and writes of one session of Spark, each with options of its own; what came of them goes into a file.

One argument, a file of JSON: `steps`, each with `name`, `what` (`read`, `stream` or `write`), `options`, for a stream those
of its `sink` and its `checkpoint` too; and `result`, the file. Spark logs all that it does at INFO.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from tests.spark.conftest import new_session

COLUMNS = ("value", "__key", "__eventTime", "__messageProperties")


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    session = new_session("local[2]")
    session.sparkContext.setLogLevel("INFO")
    results = {}
    for step in job["steps"]:
        print(f"{time.monotonic():.1f} step {step['name']}", flush=True)
        try:
            results[step["name"]] = done(session, step)
        except Exception as error:  # noqa: BLE001  (whatever it is, it is what a user sees)
            results[step["name"]] = {"error": f"{type(error).__name__}: {error}"}
    Path(job["result"]).write_text(json.dumps(results))


def done(session: Any, step: dict[str, Any]) -> dict[str, Any]:
    if step["what"] == "read":
        frame = session.read.format("pulsar").options(**step["options"]).load()
        frame.explain(True)
        plan = frame._jdf.queryExecution().toString()
        return {"values": sorted(bytes(row["value"]).decode() for row in frame.collect()), "plan": plan}
    if step["what"] == "write":
        frame = session.createDataFrame(
            [(value.encode(), value[:1]) for value in step["values"]], "value binary, __key string"
        )
        frame.write.format("pulsar").mode("append").options(**step["options"]).save()
        return {}
    frame = session.readStream.format("pulsar").options(**step["options"]).load().select(*COLUMNS)
    writer = frame.writeStream.format("pulsar").options(**step["sink"])
    query = writer.option("checkpointLocation", step["checkpoint"]).trigger(availableNow=True).start()
    query.awaitTermination()
    query.explain(True)
    return {"progress": [each.json for each in query.recentProgress]}


if __name__ == "__main__":
    main()
