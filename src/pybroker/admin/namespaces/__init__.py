"""Routes of tenants, namespaces, bundles and resource groups. Each module is a noun of the API and has `routes()`."""
