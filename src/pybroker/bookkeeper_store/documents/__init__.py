"""Pulsar's documents of managed ledgers, cursors, ledgers and schemas: their protobuf types, and their conversion to the
types of this broker. Pure. Start with `managed_ledger_documents.py` and `cursor_documents.py`.
"""
