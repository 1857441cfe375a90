"""Routes of the broker and its cluster: lookup, health, configuration, clusters, OpenAPI. Each module is a noun of the
API and has `routes()`.
"""
