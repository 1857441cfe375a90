"""Names of authentication methods, and the configured names of authentication providers."""

from __future__ import annotations

TOKEN = "token"
BASIC = "basic"
TLS = "tls"
NONE = "none"

_PACKAGE = "org.apache.pulsar.broker.authentication."
BUILT_IN = {
    f"{_PACKAGE}AuthenticationProviderToken": TOKEN,
    f"{_PACKAGE}AuthenticationProviderBasic": BASIC,
    f"{_PACKAGE}AuthenticationProviderTls": TLS,
    TOKEN: TOKEN,
    BASIC: BASIC,
    TLS: TLS,
}
"""The broker's own providers by class name of Pulsar and by short name. The values are the short names."""
