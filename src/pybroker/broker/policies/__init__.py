"""Changes of policies and settings at run time: applied to loaded topics, and published to `__change_events`.

Start with `policy_changes.py`.
"""
