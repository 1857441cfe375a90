"""Who a client is, and what it may do. Start with `authentication.py` and `authorization.py`.

Credentials never reach a log line or an error text. Libraries for a way in are imported only when that way is
configured.
"""
