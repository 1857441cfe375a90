"""Managed ledgers on Apache BookKeeper, in the layout of Apache Pulsar.

`bookkeeper_ledger_store.py` stores entries, `bookkeeper_cursor_store.py` the states of cursors, `pulsar_records.py` the
documents in the metadata store. `documents` has the encoding of these documents, `orphans` the deletion of orphaned
ledgers.
"""
