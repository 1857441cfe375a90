"""Memory budget of a broker and its parts.

Start with `memory_budget.py` (the rules) and `broker_memory.py` (the tasks).
"""
