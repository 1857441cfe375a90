"""Routes of policies of namespaces and topics.

A policy with a single value is a row of `policy_table.py`, and `policy_table_routes.py` provides its routes. Quotas,
retention and offloading have separate modules. `model/effective_policies.py` combines the levels.
"""
