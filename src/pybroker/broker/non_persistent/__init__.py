"""Non-persistent topics: messages go straight from producers to the consumers that can take them, or are dropped.

Nothing of them is ever stored, and nothing of the topics themselves: they exist while they are loaded. Start with `topic.py`.
"""
