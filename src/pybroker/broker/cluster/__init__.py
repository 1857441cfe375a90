"""Work on topics and transactions that exists only in a cluster, because other brokers serve some of the topics.

Start with `remote_participants.py`. Bundle ownership is in `pybroker.cluster.ownership`.
"""
