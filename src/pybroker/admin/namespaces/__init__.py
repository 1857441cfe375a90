"""Routes of tenants, namespaces, bundles and resource groups.

Each module covers one kind of resource and has a function `routes()`.
"""
