"""State that all topics share (`broker_context.py`), and state that all parts of one topic share
(`topic_context.py`).
"""
