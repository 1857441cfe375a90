"""The write-ahead journal: batching, writers, files, the mark of its durable end, and recovery. Start with
`journal.py`."""
