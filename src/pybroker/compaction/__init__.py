"""Topic compaction: of all messages with the same key, only the last one stays in a view beside the topic's own ledgers.

`messages` parses entries, and `survivors` determines the remaining messages. The view is one ledger of the store; `stored_entry`
has the format of its entries, and `view` finds them. `compactor` reads all entries twice and writes the next view.

Invariants: message ids stay unchanged; the managed ledger info names one complete view, or none; a view that is being written is
listed there among the ledgers to be deleted, so a crash leaves only the old view.
"""
