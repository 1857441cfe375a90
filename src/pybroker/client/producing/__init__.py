"""Producers of the client. Start with `message_producer.py` (messages) and `entry_producer.py` (stored entries)."""
