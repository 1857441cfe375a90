"""Dispatch rules of the subscription types: which consumer receives which entry. No IO, clock or log. Start with
`dispatcher.py`.

Invariants: an entry is unacknowledged at one consumer at most. An entry that was read is delivered, stays in the
dispatcher's replay set, or is read again after a rewind of the cursor. In a Key_Shared subscription, a key is
unacknowledged at one consumer at most, and its entries are sent in order.
"""
