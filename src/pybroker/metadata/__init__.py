"""Small versioned facts: tenants, namespaces, policies, topics, ledger lists. Start with `metadata_store.py`."""
