"""Snapshots of topics, subscriptions, producers and consumers: the source of all statistics, metrics and `explain`
figures.

Start with `topic_snapshot.py`. Persistent and non-persistent topics have the same snapshots.
"""
