"""HTTP below the routes: connections, request heads, limits, credentials, and the fault boundary around each request.

Start with `application.py` (the life of a request), then `protocol.py` (the life of a connection).
"""
