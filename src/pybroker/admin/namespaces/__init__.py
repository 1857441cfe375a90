"""Routes of tenants, namespaces, their bundles, and of resource groups.

Each module is a noun of the interface and has `routes()`. Policies of namespaces have a folder of their own.
"""
