"""Iceberg tables (format v2) through any catalog of pyiceberg: own snapshots, so that a commit is one request and no retry."""
