"""Export, import and check of the documents that brokers share, between an embedded store and ZooKeeper.

Start with `shared_documents.py` (which documents). `export_file.py` is the format of the file; `exporting.py`, `importing.py`
and `checking.py` do the work of `pybroker metadata export`, `import` and `check`.
"""
