"""Changes of policies and settings at run time: applied to loaded topics, and published to `__change_events`.

Default policies are in `broker/context/default_policies.py`, policy types in `model/policies.py`.
"""
