"""Lists about one subscription: unacknowledged messages, delayed messages, draining hashes, and acknowledgement gaps.

Start with `unacked.py`. A long list is a generator that pauses after each step, so that its caller can yield to the
event loop. Entries are read page by page, within memory that the caller has reserved.
"""
