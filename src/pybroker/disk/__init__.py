"""Access to the file system and to SQLite for all stores.

Start with `disk.py`, which opens everything. The checkpoint and the metadata store share `database.py` and
`marker_file.py`.
"""
