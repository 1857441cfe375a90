"""Topic compaction: of all messages with the same key, only the last one stays in a view beside the topic's own
ledgers.

The view is one ledger of the store. Start with `compactor.py`.

Invariants: message ids stay unchanged; the managed ledger info names one complete view, or none; a view that is being
written is listed there among the ledgers to be deleted, so a crash leaves only the old view.
"""
