"""Subscriptions: entries go from the cursor through the dispatcher to consumers, and consumers acknowledge them.

Start with `subscription.py`.
"""
