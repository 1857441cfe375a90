"""State that all topics (`broker_context.py`) or all parts of one topic (`topic_context.py`) share.

Imports no other folder of `broker` but `limits`.
"""
