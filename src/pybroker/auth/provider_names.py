"""Names of authentication methods, and the configured names of authentication providers."""

from __future__ import annotations

TOKEN = "token"
BASIC = "basic"
TLS = "tls"
OIDC = "oidc"
"""Short name of OpenID Connect, whose method is `token`."""
NONE = "none"

_PACKAGE = "org.apache.pulsar.broker.authentication."
BUILT_IN = {
    f"{_PACKAGE}AuthenticationProviderToken": TOKEN,
    f"{_PACKAGE}AuthenticationProviderBasic": BASIC,
    f"{_PACKAGE}AuthenticationProviderTls": TLS,
    f"{_PACKAGE}oidc.AuthenticationProviderOpenID": OIDC,
    TOKEN: TOKEN,
    BASIC: BASIC,
    TLS: TLS,
    OIDC: OIDC,
}
"""The broker's own providers by class name of Pulsar and by short name. The values are the short names."""
