"""Checkpoints: entries move from the journal to segment files, and one SQLite transaction records the new state. Start
with `checkpointer.py`.
"""
