"""Lookup of the broker and address that serve a topic. Start with `lookup.py`."""
