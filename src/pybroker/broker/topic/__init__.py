"""One loaded topic: persistent (`topic.py`), non-persistent (`non_persistent_topic.py`), and their common base
(`topic_base.py`).
"""
