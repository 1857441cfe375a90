"""The commands `pybroker pipeline ...`, which process whole topics in this process or with Spark."""
