"""Routes of topics and their subscriptions: creation, deletion, cursor moves, permissions, schemas.

Each module is a noun of the interface and has `routes()`. A handler takes names from the call, requires the permission,
calls one method of the broker, and formats the answer.
"""
