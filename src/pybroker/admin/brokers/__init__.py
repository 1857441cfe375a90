"""REST routes of the broker and its cluster: lookup, health, configuration, clusters, OpenAPI."""
