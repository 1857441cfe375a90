"""The deletion of orphaned ledgers on BookKeeper by the leader of a cluster. Start with `orphaned_ledgers.py`."""
