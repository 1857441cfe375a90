"""The journal of the local store: batching, writers, files, the record of its durable end, and recovery. Start with
`journal.py`.
"""
