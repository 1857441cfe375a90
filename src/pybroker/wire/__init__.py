"""Decoder and encoder of commands, without IO. Start with `commands.py` (received) and `replies.py` (sent).

Invariant: the chunking of received bytes never changes the decoded events.
"""
