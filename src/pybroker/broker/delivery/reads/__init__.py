"""Reads of entries for a subscription: of the backlog, of compacted topics, rescans, and failures. Start with `entry_reads.py`."""
