"""Reads of entries for a subscription: backlog, compacted topics, due delayed entries, rescans, and failed reads.

Start with `entry_reads.py`.
"""
