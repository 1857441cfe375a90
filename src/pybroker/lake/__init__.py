"""Topics into open tables, exactly once: Iceberg, Delta, Parquet. Needs the extra `tables`."""
