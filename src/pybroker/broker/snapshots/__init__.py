"""Snapshots of topics, subscriptions, producers and consumers: the source of all statistics and metrics.

Start with `topic_snapshot.py`. Persistent and non-persistent topics have the same snapshots.
"""
