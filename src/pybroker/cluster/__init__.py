"""The cluster of brokers: lookup of the broker that serves a topic, bundles and their owners, load balancing,
membership. Start with `advertised_addresses.py`.
"""
