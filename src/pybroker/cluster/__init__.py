"""Who serves a topic and under which address. Start with `lookup.py`."""
