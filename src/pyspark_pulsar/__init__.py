"""Spark looks for data sources in top-level modules `pyspark_*`: this one makes `format("pulsar")` work without a word."""
