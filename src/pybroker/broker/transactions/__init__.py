"""Transactions on one topic: messages of open and aborted transactions, and the max read position.

Start with `topic_transactions.py`. Pending transaction acks are in `broker/delivery/subscription_transactions.py`.
"""
