"""Delayed entries of a subscription, and the record in which they are stored. Start with `delayed_entries.py`."""
