"""One loaded topic, persistent or non-persistent.

Start with `topic_base.py` (common base), `topic.py` (persistent) and `non_persistent_topic.py`.
"""
