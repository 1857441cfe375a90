"""REST routes of tenants, namespaces, bundles and resource groups."""
