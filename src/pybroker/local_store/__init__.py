"""Ledger and cursor stores on local files. Start with `local_store.py`; `start_up.py` opens a data directory."""
