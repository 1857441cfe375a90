"""Schemas of topics: what a schema is, whether it is well formed, whether a new one may follow the older ones.

The pure part: `schema_data` (the value), `validation` (is it well formed), `identity` (is it the same schema again),
`compatibility` (may it follow). None of them knows topics, versions or policies. Start reading in `schema_data`.
`registry` keeps the versions of each topic's schema in the metadata store; `history` is what it knows of one topic.
"""
