"""Topic compaction: of all messages with the same key only the last one stays in a view beside the topic's own ledgers.

What a message says is decided in `messages`, which ones stay in `survivors`; the view is one ledger of the store, whose entries are
drawn in `stored_entry` and found by `view`. `compactor` reads everything twice and writes the next view.

What must always hold: message ids stay what they were; the document of the managed ledger names one view, whole, or none; a view
that is being written is named there among the ledgers to be deleted, so that a crash leaves the old view and nothing else.
"""
