"""Routes of the broker itself and of its cluster: lookup, health, configuration, clusters, the description of the interface.

Each module is a noun of the interface and has `routes()`. Figures of the broker are in `metrics/`.
"""
