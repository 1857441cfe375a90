"""`pybroker ledger copy`: copies topics between the local files of a data directory and BookKeeper, offline.

Start with `topic_copy.py`. `opening.py` opens both stores, `position_map.py` has the rule for positions, `copy_progress.py` the
file that makes a copy resumable, `copy_command.py` the command.
"""
