"""Authentication and authorization of clients. Start with `authentication.py` and `authorization.py`.

An authentication method is a module that implements `authentication_provider.py`: `basic_provider.py`, `tls_provider.py`,
`token_provider.py`. `provider_names.py` lists the names by which the configuration refers to it.

Credentials never appear in logs or error texts. The libraries of a method are imported only if it is configured.
"""
