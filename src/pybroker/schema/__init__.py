"""Topic schemas. Start with `schema_data` (the value) and `schema_registry`, which stores all versions in the metadata
store.

Pure rules: `validation` (well-formed definitions), `identity` (equality), `compatibility` (permitted new versions),
`history` (versions of one topic).
"""
