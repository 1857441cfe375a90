"""Routes of the broker and its cluster: lookup, health, configuration, clusters, OpenAPI.

Each module covers one kind of resource and has a function `routes()`.
"""
