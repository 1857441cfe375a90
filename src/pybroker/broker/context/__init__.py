"""State shared by all topics (`broker_context.py`) or by all parts of one topic (`topic_context.py`)."""
