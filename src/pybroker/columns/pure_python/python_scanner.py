"""Entries to records in plain Python: the exact twin of `_scanner.c`, for where that is not compiled and to test it by.

What must hold: whatever the bytes are, each entry gives its messages, an error, or messages up to an error; no work and no
memory beyond a constant times the bytes that are there.
"""

from pybroker.columns.pure_python.python_entries import scan_entries
from pybroker.columns.pure_python.python_gather import gather, message_ids
from pybroker.columns.pure_python.python_messages import scan_messages

__all__ = ["gather", "message_ids", "scan_entries", "scan_messages"]
