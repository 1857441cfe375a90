"""Snapshots of topics, subscriptions, producers and consumers: the source of all figures.

The outputs are statistics, metrics, the console and `explain`.

Start with `topic_snapshot.py`. A new figure is added here as a field, from which all four outputs read it. For these
outputs, only this package distinguishes persistent from non-persistent topics.
"""
