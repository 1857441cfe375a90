"""REST routes of topics and subscriptions: creation, deletion, cursor moves, permissions, schemas.

A handler takes names from the call, checks permissions, calls one method of the broker, and formats the response.
"""
