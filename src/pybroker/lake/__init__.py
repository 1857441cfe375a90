"""Pipelines from topics to open tables (Iceberg, Delta, Parquet), exactly once. Needs the extra `tables`."""
