"""OpenID Connect: tokens of configured identity providers, verified with their published keys.

Clients use the method `token`, as in Pulsar. The signature is verified before any claim is used, except the issuer,
which selects the keys.
"""

from __future__ import annotations

import ssl
from collections import OrderedDict
from functools import partial
from typing import Self

import jwt

from pybroker.auth import provider_names, token_claims
from pybroker.auth.authentication_provider import AuthenticationProvider, Identity, ProviderEnvironment, RemoteClient
from pybroker.auth.locations import decoded_base64
from pybroker.auth.openid.issuer_keys import IssuerKeys, KeyTimes
from pybroker.auth.openid.json_download import DownloadLimits, download_json, url_problem
from pybroker.auth.openid.key_set import ALGORITHMS, MAX_KEY_ID_CHARACTERS, IssuerKey
from pybroker.auth.token_claims import Claims
from pybroker.config.broker_config import BrokerConfig
from pybroker.config.setting_types import ConfigError
from pybroker.errors import AuthenticationError
from pybroker.runtime.tasks import TaskOwner

_PARTS = 3


class OpenIdProvider(AuthenticationProvider):
    """Verifies tokens of the issuers in `openIDAllowedTokenIssuers`."""

    method = provider_names.TOKEN
    name = "AuthenticationProviderOpenID"

    def __init__(self, environment: ProviderEnvironment) -> None:
        config = environment.config
        _check(config)
        self._environment = environment
        self._audiences = frozenset(config.open_id_allowed_audiences)
        self._role_claim = config.open_id_role_claim or "sub"
        self._leeway_s = config.open_id_accepted_time_leeway_seconds
        self._tasks = TaskOwner("openid")
        self._jws = jwt.PyJWS()
        times = KeyTimes(
            config.open_id_cache_refresh_after_write_seconds,
            config.open_id_cache_expiration_seconds,
            config.open_id_key_id_cache_miss_refresh_seconds,
        )
        limits = DownloadLimits(
            config.open_id_http_connection_timeout_millis / 1000, config.open_id_http_read_timeout_millis / 1000
        )
        download = partial(download_json, limits=limits, tls=tls_context(config))
        problem = partial(url_problem, requires_https=config.open_id_require_issuers_use_https)
        self._issuers = {
            issuer: IssuerKeys(issuer, times, problem, download, environment.clock, self._tasks)
            for issuer in config.open_id_allowed_token_issuers
        }
        self._cached: OrderedDict[str, None] = OrderedDict()
        """Issuers whose keys are kept, least recently used first."""
        self._cache_size = config.open_id_cache_size

    @classmethod
    def create(cls, environment: ProviderEnvironment) -> Self:
        return cls(environment)

    async def close(self) -> None:
        await self._tasks.close()

    async def authenticate(self, data: bytes, client: RemoteClient) -> Identity:
        token_claims.check_size(data)
        algorithm, key_id, issuer = self._parts_of(data)
        keys = self._issuers.get(issuer)
        if keys is None:
            raise AuthenticationError(
                "the issuer of the token is not in openIDAllowedTokenIssuers of the broker", "UNSUPPORTED_ISSUER"
            )
        claims = self._verified_claims(data, algorithm, await keys.key(key_id))
        if claims.get("iss") != issuer:  # two decoders of the same bytes disagree
            raise _malformed()
        self._use(issuer)  # not earlier: forged tokens must not displace the keys of other issuers
        return self._identity(claims)

    def _parts_of(self, token: bytes) -> tuple[str, str, str]:
        """Return algorithm, key id and issuer of a token whose signature has not been verified."""
        parts = token.split(b".")
        if len(parts) != _PARTS:
            raise _malformed()
        header, claims = (token_claims.json_object(decoded_base64(part) or b"") for part in parts[:2])
        if header is None or claims is None:
            raise _malformed()
        algorithm, key_id, issuer = header.get("alg"), header.get("kid"), claims.get("iss")
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise AuthenticationError(
                f"the algorithm of the token is not one of {', '.join(sorted(ALGORITHMS))}", "UNSUPPORTED_ALGORITHM"
            )
        if not isinstance(key_id, str) or not 0 < len(key_id) <= MAX_KEY_ID_CHARACTERS:
            raise AuthenticationError("the token has no key id (kid) in its header", "ERROR_DECODING_JWT")
        if not isinstance(issuer, str):
            raise AuthenticationError("the token has no issuer (iss)", "UNSUPPORTED_ISSUER")
        return algorithm, key_id, issuer

    def _use(self, issuer: str) -> None:
        self._cached[issuer] = None
        self._cached.move_to_end(issuer)
        if len(self._cached) > self._cache_size:
            oldest, _ = self._cached.popitem(last=False)
            self._issuers[oldest].forget()

    def _verified_claims(self, token: bytes, algorithm: str, key: IssuerKey) -> Claims:
        if algorithm not in key.algorithms:
            raise AuthenticationError(
                "the algorithm of the token differs from the algorithm of its key at the identity provider",
                "ALGORITHM_MISMATCH",
            )
        try:
            payload = self._jws.decode(token, key.key, algorithms=[algorithm])
        except jwt.InvalidSignatureError:
            raise AuthenticationError(
                "the signature of the token does not match the key of the identity provider",
                "ERROR_VERIFYING_JWT_SIGNATURE",
            ) from None
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise _malformed() from None  # the library's message can contain parts of the token
        claims = token_claims.json_object(payload)
        if claims is None:
            raise _malformed()
        return claims

    def _identity(self, claims: Claims) -> Identity:
        """Check the claims of a token with a valid signature."""
        now_s = self._environment.now_s()
        expires_at_s = token_claims.require_valid_time(claims, now_s, self._leeway_s)
        issued_s = token_claims.time_claim(claims, "iat")
        if expires_at_s is None or issued_s is None or "sub" not in claims:
            raise AuthenticationError("the token lacks one of the claims exp, iat and sub", "INVALID_JWT_CLAIM")
        if issued_s > now_s + self._leeway_s:
            raise AuthenticationError("the token was issued in the future (iat)", "INVALID_JWT_CLAIM")
        found = token_claims.audiences(claims, "aud")
        if not any(isinstance(each, str) and each in self._audiences for each in found):
            raise AuthenticationError(
                "the audience of the token is not in openIDAllowedAudiences of the broker", "INVALID_JWT_CLAIM"
            )
        role = token_claims.role(_claim(claims, self._role_claim), self._role_claim)
        return Identity(role, provider_names.TOKEN, expires_at_s)


def _malformed() -> AuthenticationError:
    return AuthenticationError("the token is not a signed JWT", "ERROR_DECODING_JWT")


def _claim(claims: Claims, name: str) -> object:
    """Return the claim `name`. If there is none, the dots in `name` separate the names of nested objects."""
    if name in claims:
        return claims[name]
    found: object = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _check(config: BrokerConfig) -> None:
    """Raises ConfigError."""
    problems = []
    issuers = config.open_id_allowed_token_issuers
    for issuer in issuers:
        problem = url_problem(issuer, requires_https=config.open_id_require_issuers_use_https)
        if problem or "?" in issuer:
            problems.append(f"openIDAllowedTokenIssuers: {issuer!r} {problem or 'contains a query'}")
    for key, values in (
        ("openIDAllowedTokenIssuers", issuers),
        ("openIDAllowedAudiences", config.open_id_allowed_audiences),
    ):
        if not values:
            problems.append(f"the authentication provider oidc needs {key}: set it")
    if config.open_id_cache_refresh_after_write_seconds > config.open_id_cache_expiration_seconds:
        problems.append("openIDCacheRefreshAfterWriteSeconds must not be larger than openIDCacheExpirationSeconds")
    if problems:
        raise ConfigError(*problems)


def tls_context(config: BrokerConfig) -> ssl.SSLContext:
    """Return the TLS settings for connections to identity providers. Raises ConfigError."""
    path = config.open_id_token_issuer_trust_certs_file_path
    try:
        return ssl.create_default_context(cafile=path or None)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "it contains no PEM certificate"
        raise ConfigError(f"openIDTokenIssuerTrustCertsFilePath: {path} cannot be used: {reason}") from None
