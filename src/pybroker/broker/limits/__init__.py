"""Rates and limits at work: of publishing, dispatching, subscribing, and of what may be unacknowledged.

A *rate limit* is one rate and what is left of it, shared by all that are under it. A *throttle* is what holds the publishers of one
topic back (`publish_throttle.py`), or the dispatch of one subscription (`dispatch_throttle.py`): all the rate limits over it. How
many producers, consumers and subscriptions a topic takes is in `topic/topic_admission.py`.
"""
