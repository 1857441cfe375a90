"""Transactions on one topic: which messages are pending or aborted, and the max read position. Start with `topic_transactions.py`.

The pending acknowledgements of transactions are in `broker/delivery/subscription_transactions.py`.
"""
