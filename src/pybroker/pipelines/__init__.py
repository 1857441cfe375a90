"""The pipelines of `pybroker pipeline ...`, which process whole topics in this process or under Spark."""
