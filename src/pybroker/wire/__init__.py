"""Bytes to commands and back, without IO. Start with `commands.py` (what arrives) and `replies.py` (what leaves).

Invariant: how the bytes of a connection are chunked never changes what is decoded from them.
"""
