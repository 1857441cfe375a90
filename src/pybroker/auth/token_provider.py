"""Authentication method `token`: JSON web tokens, signed with a shared secret or a private key.

Only the algorithms of the configured key's family are accepted, so a public key cannot be misused as a shared secret.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from pybroker.auth import provider_names
from pybroker.auth.authentication_provider import AuthenticationProvider, Identity, PeerCertificate
from pybroker.auth.locations import decoded_base64, read_location
from pybroker.config.setting_types import ConfigError
from pybroker.errors import AuthenticationError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

MAX_TOKEN_BYTES = 64 * 1024
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

    def __init__(self, settings: TokenSettings) -> None:
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
        self._jws = jwt.PyJWS()
        self._invalid_token: type[Exception] = jwt.PyJWTError

    def authenticate(self, data: bytes, peer_certificate: PeerCertificate | None, now_s: float) -> Identity:
        if not data:
            raise AuthenticationError("the client sent no token")
        if len(data) > MAX_TOKEN_BYTES:
            raise AuthenticationError(f"the token is longer than {MAX_TOKEN_BYTES} bytes")
        claims = self._verified_claims(data)
        expires_at_s = self._require_valid_time(claims, now_s)
        self._require_audience(claims)
        return Identity(self._role(claims), provider_names.TOKEN, expires_at_s)

    def _verified_claims(self, token: bytes) -> dict[str, Any]:
        for verifying in self._keys:
            try:
                payload = self._jws.decode(token, verifying.key, algorithms=list(verifying.algorithms))
                claims = json.loads(payload, parse_constant=_no_number)
            except (self._invalid_token, ValueError, RecursionError):
                continue  # the library's message can contain parts of the token
            if isinstance(claims, dict):
                return claims
        raise AuthenticationError("the token is not a JWT, or it was not signed with the broker's key")

    def _require_valid_time(self, claims: dict[str, Any], now_s: float) -> float | None:
        skew_s = self._settings.clock_skew_s
        not_before_s = _time_claim(claims, "nbf")
        if not_before_s is not None and now_s + skew_s < not_before_s:
            raise AuthenticationError("the token is not valid yet: check its claim nbf and the clocks")
        expires_s = _time_claim(claims, "exp")
        if expires_s is None:
            return None
        if now_s - skew_s >= expires_s:
            raise AuthenticationError("the token has expired: connect with a new token")
        return expires_s + skew_s

    def _require_audience(self, claims: dict[str, Any]) -> None:
        if not self._settings.audience_claim:
            return
        found = claims.get(self._settings.audience_claim)
        audiences = found if isinstance(found, list) else [found]
        if self._settings.audience not in audiences:
            raise AuthenticationError("the token's audience is not the tokenAudience of the broker")

    def _role(self, claims: dict[str, Any]) -> str:
        role = claims.get(self._settings.role_claim)
        if isinstance(role, list) and role:
            role = role[0]
        if not isinstance(role, str) or not role:
            raise AuthenticationError(f"the token has no role in its claim {self._settings.role_claim!r}")
        return role


def _time_claim(claims: dict[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise AuthenticationError(f"the token's claim {name!r} is not a number of seconds")
    try:
        seconds = float(value)
    except OverflowError:  # a number of hundreds of digits
        seconds = math.inf
    if not math.isfinite(seconds):  # 1e999 would never expire
        raise AuthenticationError(f"the token's claim {name!r} is not a number of seconds")
    return seconds


def _no_number(text: str) -> NoReturn:
    """Reject NaN and Infinity, because such an expiry time would never pass."""
    raise ValueError(f"the token contains {text}, which is not a JSON number")


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
