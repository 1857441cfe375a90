"""Reading of exact ranges of topics: from segment files, over the broker's bulk endpoint, or over the binary protocol.

`positions` has the value types, `entry_source` the interface of all transports. Independent of Spark.
"""
