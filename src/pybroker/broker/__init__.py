"""Runtime objects of a broker: topics, subscriptions, producers, and consumers.

Start with `service.py`, then `lifecycle/topic_manager.py` and `topic/topic.py`.
"""
