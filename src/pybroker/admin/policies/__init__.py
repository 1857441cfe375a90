"""Policies of namespaces and topics: set, show, and remove them.

A policy with a single value is a row of `policy_table.py`, served by `policy_table_routes.py`; other policies (quotas,
retention, offloading) have their own modules. `model/effective_policies.py` determines the policies in force.
"""
