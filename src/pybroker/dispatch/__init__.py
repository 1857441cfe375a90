"""Dispatch rules of the subscription types: which consumer receives which entry. No IO, clock or log. Start with
`dispatcher.py`.

Redelivery: `redelivery_queue.py` has the positions that wait for it and the redelivery counts, `shared_redelivery.py`
and `key_shared/keyed_redelivery.py` those of two types; `multi_consumer.py` puts returned entries there.

Invariants: an entry is unacknowledged at one consumer at most. An entry that was read is delivered, stays in the
dispatcher's replay set, or is read again after a rewind of the cursor. In a Key_Shared subscription, a key is
unacknowledged at one consumer at most, and its entries are sent in order.
"""
