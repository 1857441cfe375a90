"""Rate limits, resource groups, and the limit of unacknowledged messages.

A *rate limit* is one rate and its remaining tokens. A *throttle* combines the rate limits of one topic's publishers
(`publish_throttle.py`) or of one subscription (`broker/delivery/dispatch_throttle.py`). Limits of the number of
producers and consumers are in `producer_admission.py` and `consumer_admission.py`.
"""
