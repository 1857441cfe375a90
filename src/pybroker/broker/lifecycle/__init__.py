"""Creation, loading, unloading and deletion of topics, partitioned topics and namespaces, and watchers of topic lists.

Start with `topic_manager.py`.
"""
