"""Access to the file system and to SQLite for all stores: files, direct IO, databases, marker files, and transient disk
errors.

Start with `disk.py`, which opens everything. The checkpoint and the metadata store share `database.py` and
`marker_file.py`.
"""
