"""State that all topics share, and state that all parts of one topic share.

Start with `broker_context.py` and `topic_context.py`.
"""
