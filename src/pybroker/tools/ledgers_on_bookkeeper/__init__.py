"""`pybroker ledger` for ledgers on BookKeeper: list, dump, verify, orphans.

The commands only read, and fence no ledger. Start with `connecting.py`.
"""
