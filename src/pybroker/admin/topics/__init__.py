"""Routes of topics and subscriptions: creation, deletion, cursor moves, permissions, schemas.

Each module is a noun of the API and has `routes()`. A handler takes names from the call, checks permissions, calls one
method of the broker, and formats the response.
"""
