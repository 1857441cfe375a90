"""Snapshots of topics, subscriptions, producers, and consumers: the figures behind statistics, metrics, the console, and `explain`.

Start with `topic_snapshot.py`. A new figure becomes a field here, and each of the four shows it from there. Only these modules
distinguish persistent from non-persistent topics for figures.
"""
