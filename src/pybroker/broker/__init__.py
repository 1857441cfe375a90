"""Live objects: topics, subscriptions, producers, consumers.

Start with `service.py`, whose `__init__` shows what knows of what, then follow `topics.py` and `topic.py`.
"""
