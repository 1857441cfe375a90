"""HTTP server of the broker: admin REST API, lookups, metrics, and web console.

Start with `server.py` (ports and routes), then `http/application.py` (processing of a request). A route handler parses
the request, checks permissions, calls the same broker methods as the binary protocol, and formats the response.
"""
