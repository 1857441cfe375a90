"""One loaded topic: `topic.py` (persistent), `non_persistent_topic.py`, and `topic_base.py` with the part common to both."""
