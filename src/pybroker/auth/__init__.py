"""Authentication and authorization of clients. Start with `authentication.py` and `authorization.py`.

A method implements `authentication_provider.py`: `basic_provider.py`, `tls_provider.py`, `token_provider.py`; its
libraries are imported only if it is configured. `provider_names.py` has the names in the configuration. Logs and error
texts never contain credentials.
"""
