"""Stored entries as Arrow columns, without Spark.

Start with `decoder`, which converts runs of entries (`entry_run`) to message columns (`message_columns`). `values`
decodes payloads into typed columns. Needs pyarrow and numpy (the extra `tables`); the broker never imports it.
"""
