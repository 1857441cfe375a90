"""Schemas of topics. Start with `schema_data` (the value); `schema_registry` keeps the versions of each topic's schema
in the metadata store, `history` those of one topic.

Pure rules, without topics, versions or policies: `validation` (well-formed or not), `identity` (equality),
`compatibility` (whether a new version is allowed).
"""
