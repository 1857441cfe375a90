"""Schemas of topics: the schema value, its validation, and compatibility with earlier versions.

The pure part: `schema_data` (the value), `validation` (well-formed or not), `identity` (equality of schemas),
`compatibility` (whether a new version is allowed). These modules know no topics, versions or policies. Start with
`schema_data`. `schema_registry` keeps the versions of each topic's schema in the metadata store; `history` holds
those of one topic.
"""
