"""Policies of namespaces and topics: setting, showing and unsetting them.

A policy that is one value is a row of `policy_table.py`, served by `plain_policies.py`; what has calls of another shape (quotas,
retention, offloading) is in the other modules. What is in force is found by `model/effective_policies.py`.
"""
