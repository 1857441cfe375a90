"""Ownership: which broker of a cluster serves a bundle. The rules are in `held_bundles.py` and `assignment.py`;
`bundle_ownership.py` performs them.
"""
