"""Backup and restore of the data directory of one broker.

A running broker takes a data snapshot (`data_snapshot.py`): hard links of its segment files and copies of its two
databases, all of one moment. `pybroker backup` copies the snapshot into a backup directory (`backup_writer.py`), and
`pybroker restore` makes a data directory from it (`restore.py`). Start with `backup_layout.py`, which defines the
files.
"""
