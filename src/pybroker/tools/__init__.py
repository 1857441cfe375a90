"""Offline tools for data directories: `verify.py` finds damage, `dump.py` prints the content, `repair.py` restores.

Invariant: `verify` and `dump` change nothing on disk, whatever state a crash left. Start with `data_files.py`.
"""
