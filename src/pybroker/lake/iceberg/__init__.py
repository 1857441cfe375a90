"""Iceberg tables (format v2) in any catalog of pyiceberg.

The package creates snapshots without pyiceberg's transaction, so a commit is one request without retries.
"""
