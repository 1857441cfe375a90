"""Values that all layers use: positions, names, policies. Pure; start with `position.py` and `names.py`."""
