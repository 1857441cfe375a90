"""Authentication and authorization of clients. Start with `authentication.py` and `authorization.py`.

Credentials never appear in logs or error texts. The libraries of a method are imported only if it is configured.
"""
