"""Access to the file system and to SQLite, for every store: files, direct IO, databases, marker files, and disk errors that pass by
themselves.

Start with `disk.py`, which opens everything. The checkpoint and the metadata store share `database.py` and `marker_file.py`.
"""
