"""Snapshots of topics, subscriptions, producers and consumers: the source of all figures.

Statistics, metrics, the console and `explain` read their figures from these snapshots. A new figure is added here as a
field. For these outputs, only this package distinguishes persistent from non-persistent topics. Start with
`topic_snapshot.py`.
"""
