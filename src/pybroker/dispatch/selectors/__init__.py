"""Owners of the hashes of a Key_Shared subscription: three ways to divide the hash space. Start with
`hash_selector.py`.
"""
