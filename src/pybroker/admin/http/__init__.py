"""HTTP layer below the REST routes: connections, request heads, limits, credentials, and errors.

Start with `application.py` (requests), then `protocol.py` (connections).
"""
