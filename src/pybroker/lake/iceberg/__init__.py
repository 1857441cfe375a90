"""Iceberg tables (format v2) in any catalog of pyiceberg. This package creates snapshots itself, so a commit is one
request without retries.
"""
