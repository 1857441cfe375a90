"""`/admin/v3/transactions`: coordinators and their transactions, and transactions at topics and subscriptions.

Start with `coordinator_routes.py`.
"""
