"""Lists about one subscription: unacknowledged and delayed messages, draining hashes, and acknowledgement gaps. Start
with `unacked.py`.

A long list is a generator that pauses after each piece of work, so that its caller can yield to the event loop. Entries
are read page by page, in memory that the caller has reserved.
"""
