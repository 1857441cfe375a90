"""The interfaces of ledger storage: `ledger_store.py` and `cursor_store.py`. `memory_store.py` implements both in
memory, `local_store` on local files.
"""
