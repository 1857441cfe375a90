"""Rates and limits at work: of publishing, dispatching, subscribing, and of what may be unacknowledged.

How many producers, consumers and subscriptions a topic takes is in `topic/topic_limits.py`.
"""
