"""Lists about one subscription: unacknowledged messages, delayed messages, draining hashes, and acknowledgement gaps.

Start with `unacked.py`. A long list is a generator that yields after each step. Entries are read page by page, within
memory that the caller has reserved.
"""
