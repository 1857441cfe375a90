"""The part of a broker that exists in a cluster only: what it does for topics and transactions at other brokers.

Start with `remote_participants.py`. Ownership itself is in `pybroker.cluster.ownership`.
"""
