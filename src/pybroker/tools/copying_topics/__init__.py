"""`pybroker ledger copy`: copies topics between the local files of a data directory and BookKeeper, offline.

Start with `topic_copy.py`.
"""
