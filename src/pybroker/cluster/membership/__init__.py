"""Registration of brokers, leader election, and the registry for lookups. Start with `cluster_membership.py`."""
