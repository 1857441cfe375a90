"""One REST call: names, body, permissions, limits, and error responses.

Start with `call.py`. `routing.py` creates the route of a handler; `existing.py` finds the topic or subscription in the
path.
"""
