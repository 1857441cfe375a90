"""Live objects: topics, subscriptions, producers, consumers.

Start with `service.py`, whose `__init__` shows what knows of what, then follow `lifecycle/topics.py` and `topic/topic.py`. What
operators write code against, `entry_filters.py`, and what edges implement, `peer.py`, stand beside it.
"""
