"""Bugs that the simulator has to find: each is put into the broker by a patch, and taken out again. The table is `table.py`."""
