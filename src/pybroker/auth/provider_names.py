"""Class names of Pulsar's authentication providers, and the corresponding method names."""

from __future__ import annotations

from pybroker.config.setting_types import ConfigError

TOKEN = "token"
BASIC = "basic"
TLS = "tls"
NONE = "none"

_PACKAGE = "org.apache.pulsar.broker.authentication."
METHODS = {
    f"{_PACKAGE}AuthenticationProviderToken": TOKEN,
    f"{_PACKAGE}AuthenticationProviderBasic": BASIC,
    f"{_PACKAGE}AuthenticationProviderTls": TLS,
    TOKEN: TOKEN,
    BASIC: BASIC,
    TLS: TLS,
}


def method_of(provider: str) -> str:
    """Return the method for a provider's class name or short name. Raises ConfigError if the provider is not
    supported.
    """
    method = METHODS.get(provider)
    if method is None:
        known = ", ".join(METHODS)
        raise ConfigError(f"authenticationProviders: {provider!r} is not supported; use one of {known}")
    return method
