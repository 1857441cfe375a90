"""Lists about one subscription: unacknowledged and delayed messages, draining hashes, and acknowledgement gaps.

A long list is a generator that pauses after each piece of work, so that its caller can yield to the event loop; entries are read
page by page, in memory that the caller has reserved. Start with `unacked.py`.
"""
