"""Where entries and cursor records rest. Start with `ledger_store.py` (the plug) and `cursor_store.py`."""
