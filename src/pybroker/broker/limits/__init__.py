"""Rate limits, resource groups, and the broker-wide limit of unacknowledged messages.

A *rate limit* is one rate with its remaining tokens. A *throttle* combines several rate limits: for the publishers of
one topic (`publish_throttle.py`), or for one subscription (`broker/delivery/dispatch_throttle.py`).
"""
