"""Periodic maintenance, and maintenance that an administrator requests. Start with `periodic_maintenance.py`."""
