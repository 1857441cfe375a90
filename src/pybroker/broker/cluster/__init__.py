"""Transactions of a cluster whose participants or coordinators other brokers serve.

Start with `remote_participants.py`.
"""
