"""Offline tools for data directories: `verify.py` finds damage, `dump.py` prints the content, `repair.py` repairs.

Invariant: `verify` and `dump` change nothing on disk. Start with `data_files.py`.
"""
