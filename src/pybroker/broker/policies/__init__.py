"""Changes of policies and settings at run time: applied to loaded topics and published to `__change_events`.

Default policies are in `broker/context/default_policies.py`, the policies themselves in `model/policies.py`.
"""
