"""Dispatch rules of the subscription types: which consumer receives which entry. No IO, clock or log. Start with
`dispatcher.py`.

Invariants: at most one consumer at a time holds an assigned entry unacknowledged. An entry that was read is delivered,
stays in the dispatcher's replay set, or is read again because the cursor was rewound. In a Key_Shared subscription, at
most one consumer at a time holds unacknowledged entries of a key, and entries of a key are sent in order.
"""
