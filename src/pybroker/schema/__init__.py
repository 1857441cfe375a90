"""Schemas of topics. Start with `schema_data` (the value) and `schema_registry`, which stores all versions.

Pure rules: `validation` (well-formed definitions), `identity` (equality), `compatibility` (permitted new versions),
`history` (versions of one topic).
"""
