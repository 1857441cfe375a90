"""Segment files, which hold the entries of one ledger each: writing, reading, and cached indexes. Start with
`ledger_reads.py`."""
