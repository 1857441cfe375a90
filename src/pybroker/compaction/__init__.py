"""Topic compaction: writes a view of a topic with only the last message of each key. Start with `compactor.py`.

The view is one ledger of the store, beside the topic's own ledgers. Message ids stay unchanged. The managed ledger info
lists at most one complete view. A view that is being written is listed among the ledgers to be deleted, so a crash
leaves only the old view.
"""
