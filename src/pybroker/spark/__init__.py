"""The Spark data source `pulsar`, its sink, and tables that describe topics. Needs the extra `spark`."""
