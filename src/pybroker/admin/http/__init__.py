"""HTTP layer below the routes: connections, request heads, limits, credentials, and the fault boundary of each request.

Start with `application.py` (requests), then `protocol.py` (connections).
"""
