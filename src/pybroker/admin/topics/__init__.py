"""Routes of topics and their subscriptions: making, deleting, moving cursors, permissions, schemas.

Each module is a noun of the interface and has `routes()`. A handler takes its names from the call, asks for the right, calls one
method of the broker and shapes the answer. Policies, statistics and messages of topics have folders of their own.
"""
