"""Who gets which entry: the rules of the subscription types, without IO, clock or log. Start with `dispatcher.py`.

What always holds: an entry that was assigned is unacknowledged at one consumer at a time; an entry that was read is
delivered, waits in the dispatcher's replay set, or is read again because the cursor was rewound; nothing is dropped
silently. A key of a Key_Shared subscription is unacknowledged at one consumer at a time, and sent in order.
"""
