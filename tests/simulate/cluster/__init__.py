"""Several whole brokers on one simulated ZooKeeper and simulated bookies. Start with `cluster_simulation.py`."""
