"""The HTTP edge: admin REST, lookups, metrics.

Routes parse, authorise and shape answers; what they do happens in the broker's own objects, in the methods that the
binary protocol calls as well. Start with `http.py` (sockets and connections), then `application.py` (the life of a
request), then any module of `routes/`.
"""
