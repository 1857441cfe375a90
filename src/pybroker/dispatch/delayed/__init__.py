"""Delayed entries of a subscription, and the format in which their index is stored. Start with `delayed_entries.py`."""
