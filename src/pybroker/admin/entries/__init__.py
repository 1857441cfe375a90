"""Stored entries and messages over HTTP: ranges of entries in bulk, leases on them, single messages, and publishing.

Start with `entry_routes.py`. `entry_plan.py` lists the entries between two positions, and `entry_blocks.py` sends them.
"""
