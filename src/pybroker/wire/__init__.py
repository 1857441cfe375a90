"""Decoder and encoder of commands, without IO. Start with `commands.py` (received) and `replies.py` (sent).

Invariant: the decoded events do not depend on how the received bytes are split into reads.
"""
