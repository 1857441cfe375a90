"""Stored entries as Arrow columns, without Spark.

Start with `decoder`: it turns runs of entries (`entry_run`) into message columns (`message_columns`). `values`
decodes payloads into typed columns. Needs pyarrow and numpy (the extra `tables`); the broker never imports it.
"""
