"""REST routes of policies of namespaces and topics.

A policy with a single value is a row of `policy_table.py`; `policy_table_routes.py` has its routes. Quotas, retention
and offloading have separate modules.
"""
