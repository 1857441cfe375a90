"""Periodic checks, and work that an operator requests. Start with `periodic_maintenance.py`."""
