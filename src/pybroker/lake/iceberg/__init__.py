"""Iceberg tables (format v2) through any catalog of pyiceberg. It creates its own snapshots, so a commit is one request without
retries.
"""
