"""`/admin/v3/transactions`: coordinators and their transactions, and what topics and subscriptions know of them.

Begin at `coordinator_routes.py`.
"""
