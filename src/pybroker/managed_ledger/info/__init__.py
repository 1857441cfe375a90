"""The stored description of a managed ledger: its content (`managed_ledger_info.py`), the interface to its storage
(`info_records.py`), and the storage as one JSON value (`json_records.py`).
"""
