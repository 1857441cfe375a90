"""Consumers of the client. Start with `message_consumer.py` (messages) and `entry_consumer.py` (stored entries)."""
