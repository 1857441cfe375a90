"""Values that every layer speaks of: positions, names, policies. Pure; start with `position.py` and `names.py`."""
