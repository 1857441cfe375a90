"""Lookup of the broker and address that serve a topic. Start with `advertised_addresses.py`."""
