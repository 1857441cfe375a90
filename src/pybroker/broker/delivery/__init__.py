"""Subscriptions: entries go from the cursor through the dispatcher to consumers, and acknowledgements come back.

Start with `subscription.py`.
"""
