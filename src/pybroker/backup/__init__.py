"""Backup and restore of the data directory of one broker.

A running broker takes a data snapshot (`data_snapshot.py`): hard links of its segment files and copies of its two databases, all of
one moment. `pybroker backup` copies the snapshot into a backup directory (`backup_writer.py`), and `pybroker restore` makes a
data directory from it (`restore.py`). `backup_layout.py` defines the files of a backup directory; start reading there.
"""
