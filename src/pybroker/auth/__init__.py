"""Authentication and authorization of clients. Start with `authentication.py` and `authorization.py`.

Each authentication method implements `authentication_provider.py`. `provider_names.py` maps configured provider names
to methods. Logs and error texts never contain credentials.
"""
