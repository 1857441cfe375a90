"""Authentication and authorization of clients. Start with `authentication.py` and `authorization.py`.

Each authentication method implements `authentication_provider.py`: `basic_provider.py`, `tls_provider.py`,
`token_provider.py`, and classes of other Python packages (`plugins.py`). The libraries of a method are imported only if
the method is configured. `provider_names.py` maps configured provider names to methods. Logs and error texts never
contain credentials.
"""
