"""Creation, loading, unloading, and deletion of topics, partitioned topics, and namespaces; watchers of topic names.

Start with `topic_manager.py`.
"""
