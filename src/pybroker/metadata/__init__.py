"""Metadata: small values with versions, such as tenants, namespaces, policies, and ledger lists.

Start with `metadata_store.py`.
"""
