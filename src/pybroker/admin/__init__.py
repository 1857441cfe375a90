"""The HTTP edge: admin REST, lookups, metrics.

Routes parse, authorise and shape answers; what they do happens in the broker's own objects, in the methods that the
binary protocol calls as well. Start with `server.py` (which routes there are, and the ports), then `http/application.py` (the
life of a request), then any route of `topics/`, `namespaces/`, `brokers/`, `policies/`, `entries/`, `stats/` or `metrics/`.
"""
