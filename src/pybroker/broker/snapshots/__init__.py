"""Snapshots of topics, subscriptions, producers and consumers: the figures behind statistics, metrics, the console and
`explain`.

Start with `topic_snapshot.py`. A new figure becomes a field here, from which all four show it. Only these modules
distinguish persistent from non-persistent topics for figures.
"""
