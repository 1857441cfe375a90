"""Authentication and authorization of clients. Start with `authentication.py` and `authorization.py`.

Logs and error texts never contain credentials. Libraries of an authentication method are imported only if it is
configured.
"""
