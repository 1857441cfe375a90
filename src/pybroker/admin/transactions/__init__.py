"""REST routes of transactions: coordinators, single transactions, and transactions on topics and subscriptions.

Start with `coordinator_routes.py`.
"""
