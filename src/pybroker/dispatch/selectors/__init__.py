"""Hash selectors: three ways to divide the hash space of a Key_Shared subscription among its consumers.

Start with `hash_selector.py`.
"""
