"""Segment files, one per ledger: writing, reading, and cached indexes. Start with `ledger_reads.py`."""
