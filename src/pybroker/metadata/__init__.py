"""Small versioned facts: tenants, namespaces, policies, topics, ledger lists. Start with `store.py`."""
