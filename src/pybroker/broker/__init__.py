"""The live objects of a broker: topics, subscriptions, producers, and consumers.

Start with `service.py`, whose constructor puts all parts together, then `lifecycle/topic_manager.py` and `topic/topic.py`.
The folders in the order of their imports, each of which imports only earlier ones: `limits`, `context`, `publishing`,
`delivery`, `transactions`, `topic`, `lifecycle`, `policies`, `maintenance`, `inspection`, `explain`.
Entry filters of operators implement `entry_filters.py`; the server implements `context/peer.py`.
"""
