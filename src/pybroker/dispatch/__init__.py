"""Dispatch rules of the subscription types: which consumer receives which entry. No IO, clock or log. Start with
`dispatcher.py`.

Redelivery: `redelivery_queue.py` has the positions that wait for it and the redelivery counts, `shared_redelivery.py`
and `key_shared/keyed_redelivery.py` those of two types; `multi_consumer.py` puts returned entries there.

Invariants: at most one consumer at a time holds an assigned entry unacknowledged. An entry that was read is delivered,
stays in the dispatcher's replay set, or is read again because the cursor was rewound. In a Key_Shared subscription, at
most one consumer at a time holds unacknowledged entries of a key, and entries of a key are sent in order.
"""
