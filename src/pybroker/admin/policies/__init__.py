"""Policies of namespaces and topics.

A policy with a single value is a row of `policy_table.py`, served by `policy_table_routes.py`; others (quotas,
retention, offloading) have separate modules. `model/effective_policies.py` combines the levels.
"""
