"""OpenID Connect: tokens of identity providers. Start with `openid_provider.py`.

`issuer_keys.py` keeps the keys of one identity provider, `key_set.py` reads them from a document, and
`json_download.py` fetches documents.
"""
