"""Authentication method `token`: JSON web tokens, signed with a shared secret or a private key.

Only the algorithms of the configured key's family are accepted, so a public key cannot be misused as a shared secret.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from pybroker.auth import provider_names, token_claims
from pybroker.auth.authentication_provider import AuthenticationProvider, Identity, ProviderEnvironment, RemoteClient
from pybroker.auth.locations import decoded_base64, read_location
from pybroker.auth.token_claims import Claims
from pybroker.config.setting_types import ConfigError
from pybroker.errors import AuthenticationError
from pybroker.runtime.clock import Clock

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

MIN_SECRET_BYTES = 32
HMAC_ALGORITHMS = (("HS256", 32), ("HS384", 48), ("HS512", 64))  # minimum secret length in bytes
_RSA_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_EC_ALGORITHMS = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """Configuration keys that start with `token`."""

    secret_key: str = ""
    public_key: str = ""
    public_algorithm: str = "RS256"
    role_claim: str = "sub"
    audience_claim: str = ""
    audience: str = ""
    clock_skew_s: int = 0


@dataclass(frozen=True, slots=True)
class _VerifyingKey:
    key: RSAPublicKey | EllipticCurvePublicKey | bytes
    algorithms: tuple[str, ...]


class TokenProvider(AuthenticationProvider):
    """Verifies tokens with one configured key."""

    method = provider_names.TOKEN
    name = "AuthenticationProviderToken"

    def __init__(self, settings: TokenSettings, clock: Clock | None = None) -> None:
        import jwt  # noqa: PLC0415  (slow, with cryptography: only its users wait for it)

        if settings.audience_claim and not settings.audience:
            raise ConfigError("tokenAudienceClaim is set, so tokenAudience must be set as well")
        if settings.secret_key:
            self._keys = _secret_keys(read_location("tokenSecretKey", settings.secret_key))
        elif settings.public_key:
            self._keys = [_public_key(read_location("tokenPublicKey", settings.public_key), settings.public_algorithm)]
        else:
            raise ConfigError("authentication provider token needs a key: set tokenSecretKey or tokenPublicKey")
        self._settings = settings
        self._clock = clock or Clock()
        self._jws = jwt.PyJWS()
        self._invalid_token: type[Exception] = jwt.PyJWTError

    @classmethod
    def create(cls, environment: ProviderEnvironment) -> Self:
        config = environment.config
        settings = TokenSettings(
            secret_key=config.token_secret_key,
            public_key=config.token_public_key,
            public_algorithm=config.token_public_alg,
            role_claim=config.token_auth_claim or "sub",
            audience_claim=config.token_audience_claim,
            audience=config.token_audience,
            clock_skew_s=config.token_allowed_clock_skew_seconds,
        )
        return cls(settings, environment.clock)

    async def authenticate(self, data: bytes, client: RemoteClient) -> Identity:
        return self.verify(data, self._clock.wall_ms() / 1000)

    def verify(self, data: bytes, now_s: float) -> Identity:
        """Verify a token at the Unix time `now_s`. Raises AuthenticationError."""
        token_claims.check_size(data)
        claims = self._verified_claims(data)
        expires_at_s = token_claims.require_valid_time(claims, now_s, self._settings.clock_skew_s)
        self._require_audience(claims)
        claim = self._settings.role_claim
        return Identity(token_claims.role(claims.get(claim), claim), provider_names.TOKEN, expires_at_s)

    def _verified_claims(self, token: bytes) -> Claims:
        for verifying in self._keys:
            try:
                payload = self._jws.decode(token, verifying.key, algorithms=list(verifying.algorithms))
            except (self._invalid_token, ValueError, RecursionError):
                continue  # the library's message can contain parts of the token
            claims = token_claims.json_object(payload)
            if claims is not None:
                return claims
        raise AuthenticationError("the token is not a JWT, or it was not signed with the broker's key", "INVALID_TOKEN")

    def _require_audience(self, claims: Claims) -> None:
        if not self._settings.audience_claim:
            return
        if self._settings.audience not in token_claims.audiences(claims, self._settings.audience_claim):
            raise AuthenticationError(
                "the token's audience is not the value of tokenAudience in the broker's configuration",
                "INVALID_AUDIENCES",
            )


def _secret_keys(content: bytes) -> list[_VerifyingKey]:
    """Return the possible secrets: the bytes of the file and, if these are Base64, the decoded bytes."""
    import jwt  # noqa: PLC0415  (see TokenProvider)

    keys = []
    for secret in (content, decoded_base64(content)):
        algorithms = tuple(name for name, shortest in HMAC_ALGORITHMS if secret and len(secret) >= shortest)
        if secret and algorithms:
            keys.append(_VerifyingKey(secret, algorithms))
    if not keys:
        raise ConfigError(
            f"the key in tokenSecretKey has {len(content)} bytes; at least {MIN_SECRET_BYTES} bytes are needed"
        )
    try:
        jwt.PyJWS().encode(b"{}", content, algorithm=keys[0].algorithms[0])
    except jwt.InvalidKeyError as error:
        raise ConfigError(
            "tokenSecretKey contains a public or private key: set tokenPublicKey to a public key instead"
        ) from error
    return keys


def _public_key(content: bytes, algorithm: str) -> _VerifyingKey:
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415  (see TokenProvider)
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec, rsa  # noqa: PLC0415

    try:
        if content.lstrip().startswith(b"-----BEGIN"):
            key = serialization.load_pem_public_key(content.lstrip())
        else:
            # DER always contains bytes outside the Base64 alphabet.
            key = serialization.load_der_public_key(decoded_base64(content) or content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError("tokenPublicKey contains no public key in DER or PEM format") from error
    if algorithm in _RSA_ALGORITHMS and isinstance(key, rsa.RSAPublicKey):
        return _VerifyingKey(key, _RSA_ALGORITHMS)
    if algorithm in _EC_ALGORITHMS.values() and isinstance(key, ec.EllipticCurvePublicKey):
        own = _EC_ALGORITHMS.get(key.curve.name)
        if own is not None:
            return _VerifyingKey(key, (own,))
    raise ConfigError(f"tokenPublicKey is not a key for tokenPublicAlg={algorithm}: change one of them")
