"""Stored entries as Arrow columns, without Spark: what analytics and pipelines read.

`entry_run` says where entries lie in memory, `message_columns` which columns a message has, `decoder` makes these of those (begin
there), `values` turns payloads into typed columns by their schemas. Needs pyarrow and numpy (the extra `tables`); the broker
never imports it.
"""
