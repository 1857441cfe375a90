"""The live objects of a broker: topics, subscriptions, producers, and consumers.

Start with `service.py`, which creates and connects all parts, then `lifecycle/topic_manager.py` and `topic/topic.py`. The folders
in import order: `limits`, `context`, `publishing`, `delivery`, `transactions`, `topic`, `snapshots`, `lifecycle`, `policies`,
`maintenance`, `inspection`, `explain`.
"""
