"""Live objects: topics, subscriptions, producers, consumers. Start with `service.py`, then follow `topic.py`."""
