"""Subscriptions: entries flow from the cursor through the dispatcher to consumers, which acknowledge them.

Start with `subscription.py`.
"""
