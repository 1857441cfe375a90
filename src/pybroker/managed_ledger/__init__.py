"""Managed ledgers: endless streams of entries with cursors, on any `LedgerStore`.

Start with `managed_ledger.py`, then `managed_cursor.py`.
"""
