"""Maintenance of topics, periodic or at the request of an administrator. Start with `periodic_maintenance.py`."""
