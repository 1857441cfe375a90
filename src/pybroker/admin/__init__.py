"""The HTTP server: admin REST, lookups, metrics, console.

A route handler parses the request, checks permissions, calls the broker's methods (as the binary protocol does), and
formats the response. Start with `server.py` (routes and ports), then `http/application.py` (request processing).
"""
