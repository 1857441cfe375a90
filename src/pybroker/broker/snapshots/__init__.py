"""Snapshots of topics, subscriptions, producers, and consumers: the figures behind statistics, metrics, the console, and `explain`.

Start with `topic_snapshot.py`. A new figure becomes a field of a snapshot here, and each of the four shows it from there. These
modules are the only ones that distinguish persistent topics from non-persistent ones for figures.
"""
