"""Which broker of a cluster serves a namespace bundle.

Rules in `held_bundles.py` and `assignment.py`; `bundle_ownership.py` performs them.
"""
