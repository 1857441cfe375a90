"""Hostile tokens, drawn from a seed. No IO.

A token is of the identity provider, or signed with the broker's secret. Changes that no broker may accept are marked, so that a
broker that accepts such a token is found out; changes whose bytes can mean the same, such as spaces, are not judged.
"""

import base64
import hmac
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import jwt
from tests.support.identity_provider import AUDIENCE, IdentityProvider, new_key

OTHER_ALGORITHMS: tuple[Any, ...] = (
    *(
        "none",
        "None",
        "HS512",
        "RS256",
        "ES384",
        "PS256",
        "EdDSA",
        "",
        "x" * 5000,
        "\ud800",
        None,
        1,
        [],
        {},
        ["ES256"],
    ),
)
"""None of them is that of the signature."""
KEY_IDS: tuple[Any, ...] = (
    "",
    "first",
    "other",
    "x" * 300,
    "x" * 100_000,
    "../../etc/passwd",
    "' OR 1=1",
    "\0",
    "\ud800",
    None,
    1,
    [],
    {},
    ["first"],
    True,
)
ODD_VALUES: tuple[Any, ...] = (
    *(
        "",
        " ",
        "x" * 2000,
        "\0",
        "\ud800",
        "é☃",
        None,
        True,
        False,
        0,
        -1,
        1.5,
        2**63,
        10**400,
        1e308,
        float("inf"),
        float("nan"),
    ),
    *([], {}, [[]], [None], [1], ["a", 1], {"a": "b"}, [["app"]], ["\ud800"]),
)
CLAIMS = ("iss", "sub", "aud", "iat", "nbf", "exp", "unknown")
ROLE = "app"


@dataclass(frozen=True)
class HostileToken:
    """A token. `accepted`: whether the broker must accept it; None: either."""

    kind: str
    data: bytes
    accepted: bool | None


class TokenMaker:
    """Draws tokens. The secret is that of the broker's `tokenSecretKey`."""

    def __init__(self, random: Random, provider: IdentityProvider, secret: bytes) -> None:
        self._random = random
        self._provider = provider
        self._secret = secret
        self._foreign_key = new_key("ES256")
        self._kinds: list[Callable[[], HostileToken]] = [
            *[self._valid] * 4,
            *[self._odd_header] * 4,
            *[self._odd_claims] * 5,
            *[self._foreign] * 2,
            *[self._unsigned] * 2,
            *[self._changed] * 5,
            *[self._parts] * 3,
            *[self._no_objects] * 3,
            *[self._garbage] * 1,
        ]

    def next(self) -> HostileToken:
        return self._random.choice(self._kinds)()

    def valid(self) -> bytes:
        return self._valid().data

    def _claims(self) -> dict[str, Any]:
        now_s = int(time.time())
        return {
            "iss": self._provider.issuer,
            "sub": ROLE,
            "aud": AUDIENCE,
            "iat": now_s,
            "nbf": now_s - 5,
            "exp": now_s + 3600,
        }

    def _signed(self, payload: bytes, header: dict[str, Any] | None = None) -> bytes:
        """Sign any header and payload with the key of the identity provider or with the broker's secret."""
        if self._random.random() < 0.6:
            key: Any = self._provider.keys["first"][0]
            return self._sealed({"alg": "ES256", "typ": "JWT", "kid": "first"} | (header or {}), payload, key, "ES256")
        return self._sealed({"alg": "HS256", "typ": "JWT"} | (header or {}), payload, self._secret, "HS256")

    def _sealed(self, header: dict[str, Any], payload: bytes, key: Any, algorithm: str) -> bytes:
        present = {name: value for name, value in header.items() if value is not None}
        signed = _base64(json.dumps(present).encode()) + b"." + _base64(payload)
        if algorithm == "HS256":  # the library refuses a public key as a secret
            return signed + b"." + _base64(hmac.digest(key, signed, "sha256"))
        method = jwt.get_algorithm_by_name(algorithm)
        return signed + b"." + _base64(method.sign(signed, method.prepare_key(key)))

    def _valid(self) -> HostileToken:
        return HostileToken("valid", self._signed(json.dumps(self._claims()).encode()), accepted=True)

    def _odd_header(self) -> HostileToken:
        random = self._random
        payload = json.dumps(self._claims()).encode()
        if random.random() < 0.4:
            algorithm = random.choice(OTHER_ALGORITHMS)
            return HostileToken("odd alg", self._signed(payload, {"alg": algorithm}), accepted=False)
        if random.random() < 0.6:
            return HostileToken("odd kid", self._signed(payload, {"kid": random.choice(KEY_IDS)}), accepted=None)
        name = random.choice(("typ", "crit", "b64", "jku", "jwk", "x5c", "zip", "cty", "enc"))
        return HostileToken("odd header", self._signed(payload, {name: random.choice(ODD_VALUES)}), accepted=None)

    def _odd_claims(self) -> HostileToken:
        random = self._random
        claims = self._claims()
        for _ in range(random.choice((1, 1, 2))):
            claims[random.choice(CLAIMS)] = random.choice(
                (*ODD_VALUES, [ROLE], "https://localhost:2", 1, int(time.time()) - 100)
            )
        expires = claims.get("exp")
        is_expired = isinstance(expires, int | float) and expires < time.time() - 60
        kind = "expired" if is_expired else "odd claims"
        return HostileToken(kind, self._signed(json.dumps(claims).encode()), accepted=False if is_expired else None)

    def _foreign(self) -> HostileToken:
        """Signed with a key that the broker does not trust, or with the published key misused as a secret."""
        payload = json.dumps(self._claims()).encode()
        header = {"alg": "ES256", "typ": "JWT", "kid": "first"}
        if self._random.random() < 0.5:
            return HostileToken(
                "foreign key", self._sealed(header, payload, self._foreign_key, "ES256"), accepted=False
            )
        public = json.dumps(self._provider.published[0]).encode()
        data = self._sealed(header | {"alg": "HS256"}, payload, public, "HS256")
        return HostileToken("published key as secret", data, accepted=False)

    def _unsigned(self) -> HostileToken:
        random = self._random
        payload = json.dumps(self._claims()).encode()
        header = {"alg": random.choice(("none", "NONE", "ES256", "HS256")), "kid": "first"}
        signature = random.choice(
            (b"", b"A", b"AAAA", b"=", _base64(b"\0" * 64), _base64(b"\0" * 32), _base64(random.randbytes(5000)))
        )
        data = _base64(json.dumps(header).encode()) + b"." + _base64(payload) + b"." + signature
        return HostileToken("no signature", data, accepted=False)

    def _changed(self) -> HostileToken:
        random = self._random
        changed = bytearray(self.valid())
        for _ in range(random.choice((1, 1, 2, 5))):
            at = random.randrange(len(changed))
            draw = random.random()
            if draw < 0.7:
                changed[at] = random.choice((0, 32, 43, 45, 46, 47, 61, 95, 127, 128, 255, random.randrange(256)))
            elif draw < 0.85:
                changed[at:at] = random.randbytes(1)
            else:
                del changed[at:]
                break
        return HostileToken("changed bytes", bytes(changed), accepted=None)

    def _parts(self) -> HostileToken:
        random = self._random
        parts = self.valid().split(b".")
        other = self.valid().split(b".")
        data = random.choice(
            (
                b".".join(parts[:2]),
                b".".join(parts[:1]),
                b".".join(reversed(parts)),
                b".".join([*parts, parts[2]]),
                b"...",
                b"..",
                b".",
                b".".join([parts[0], _base64(b'{"sub":"admin"}'), parts[2]]),
                b".".join([*other[:2], b""]),
                b"." * 60_000,
            )
        )
        return HostileToken("parts", data, accepted=False)

    def _no_objects(self) -> HostileToken:
        """A payload or header that is no JSON object, correctly signed."""
        random = self._random
        odd = random.choice(
            (
                b"",
                b"null",
                b"[]",
                b"1",
                b'"x"',
                b"{",
                b"\xff\xfe",
                b"[" * 20_000,
                b'{"a":' * 8000,
                b'{"exp":NaN}',
                b'{"exp":1e999}',
                b'{"exp":' + b"9" * 4000 + b"}",
                b'{"sub":"\\ud800"}',
                b"\xef\xbb\xbf{}",
                b'{"sub":"app","sub":1}',
            )
        )
        if random.random() < 0.6:
            return HostileToken("no claims", self._signed(odd), accepted=None)
        parts = self.valid().split(b".")
        return HostileToken("no header", b".".join([_base64(odd), *parts[1:]]), accepted=False)

    def _garbage(self) -> HostileToken:
        random = self._random
        return HostileToken("garbage", random.randbytes(random.choice((0, 1, 50, 5000, 70_000))), accepted=False)


def _base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
