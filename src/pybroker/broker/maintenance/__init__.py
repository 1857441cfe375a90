"""Periodic work and work on request of an operator: retention, expiry, inactive topics, health check, backlog analysis.

Start with `periodic_maintenance.py`.
"""
