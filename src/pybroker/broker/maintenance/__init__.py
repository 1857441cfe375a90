"""Periodic work and work on request of an operator. Start with `periodic_maintenance.py`."""
