"""Ranges of a topic, read exactly: from segment files, from the broker's bulk endpoint, or over the binary protocol.

`places` are the values, `entry_source` what each way of reading offers. No Spark in here.
"""
