"""`/admin/v3/transactions`: transaction coordinators, their transactions, and transactions on topics and subscriptions.

Start with `coordinator_routes.py`.
"""
