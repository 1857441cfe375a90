"""Encoding of the messages between bookies and clients: `frames.py` (version 2), `messages_v3.py` (version 3),
`entry_format.py` (stored entries with their digests). No IO.
"""
