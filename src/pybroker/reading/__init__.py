"""Exact reading of topic ranges, from segment files, the broker's bulk endpoint, or over the binary protocol.

`positions` has the value types, `entry_source` the interface of all transports. Independent of Spark.
"""
