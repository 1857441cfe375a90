"""Routes of topics and subscriptions: creation, deletion, cursor moves, permissions, schemas.

Each module covers one kind of resource and has a function `routes()`. A handler takes names from the call, checks
permissions, calls one method of the broker, and formats the response.
"""
