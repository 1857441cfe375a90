"""Rate limits, resource groups, and the limit of unacknowledged messages.

A *rate limit* is one rate and its remaining tokens. A *throttle* applies all rate limits of one topic's publishers
(`publish_throttle.py`) or of one subscription (`broker/delivery/dispatch_throttle.py`). Other limits of producers and consumers are
in `broker/publishing/producer_admission.py` and `broker/delivery/consumer_admission.py`.
"""
