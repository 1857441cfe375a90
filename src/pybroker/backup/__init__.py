"""Backup and restore of the data directory of one broker. Start with `backup_layout.py`, which defines the files.

A running broker takes a data snapshot (`data_snapshot.py`): hard links to its segment files and copies of its two
databases, all from the same moment. `pybroker backup` copies the snapshot into a backup directory (`backup_writer.py`),
and `pybroker restore` creates a data directory from a backup (`restore.py`).
"""
