"""HTTP server: admin REST API, lookups, metrics, and web console.

A route handler parses the request, checks permissions, calls the same broker methods as the binary protocol, and
formats the response. Start with `server.py` (routes and ports), then `http/application.py` (request processing).
"""
