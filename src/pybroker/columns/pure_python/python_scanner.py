"""The pure Python version of `_scanner.c`, for installations without a C compiler and as the reference in tests.

Invariant: for any bytes, each entry gives its messages, an error, or messages followed by an error. Time and memory are
linear in the input size.
"""

from pybroker.columns.pure_python.python_entries import scan_entries
from pybroker.columns.pure_python.python_gather import gather, message_ids
from pybroker.columns.pure_python.python_messages import scan_messages

__all__ = ["gather", "message_ids", "scan_entries", "scan_messages"]
