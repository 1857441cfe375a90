"""Transaction coordinators: open transactions, their participants, commit and abort, and the durable log.

Start with `coordinator_state.py`, the rules, and `coordinator.py`, which performs them.
"""
