"""REST access to entries and messages: bulk reads, read leases, single messages, and publishing.

Start with `entry_routes.py`. `entry_plan.py` lists the entries between two positions; `entry_blocks.py` sends them.
"""
