"""The HTTP edge: admin REST, lookups, metrics.

Routes parse requests, authorise them, call the broker's methods (the same as the binary protocol), and format answers.
Start with `server.py` (routes and ports), then `http/application.py` (the life of a request).
"""
