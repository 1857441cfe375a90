"""Claims of JSON web tokens. All functions raise AuthenticationError with texts that contain no part of the token."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from pybroker.errors import AuthenticationError

MAX_TOKEN_BYTES = 64 * 1024
MAX_ROLE_CHARACTERS = 1024
Claims = dict[str, Any]


def check_size(token: bytes) -> None:
    if not token:
        raise AuthenticationError("the client sent no token")
    if len(token) > MAX_TOKEN_BYTES:
        raise AuthenticationError(f"the token is longer than {MAX_TOKEN_BYTES} bytes", "INVALID_TOKEN")


def json_object(content: bytes) -> Claims | None:
    """Return the JSON object in `content`; None for anything else. NaN and Infinity are refused, because such an expiry
    time would never pass, and so are unpaired surrogates, because a role with one could not be stored or shown.
    """
    try:
        text = content.decode()
        found = json.loads(text, parse_constant=_no_number)
        if "\\u" in text:
            json.dumps(found, ensure_ascii=False).encode()  # raises UnicodeEncodeError for an unpaired surrogate
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"the token contains {text}, which is not a JSON number")


def require_valid_time(claims: Claims, now_s: float, skew_s: float) -> float | None:
    """Check the validity period of the token (claims nbf and exp) with the tolerance `skew_s`. Return the Unix time
    until which it is accepted, exp + `skew_s`; None without exp.
    """
    not_before_s = time_claim(claims, "nbf")
    if not_before_s is not None and now_s + skew_s < not_before_s:
        raise AuthenticationError("the token is not valid yet: check its claim nbf and the clocks", "INVALID_TOKEN")
    expires_s = time_claim(claims, "exp")
    if expires_s is None:
        return None
    if now_s - skew_s >= expires_s:
        raise AuthenticationError("the token has expired: connect with a new token", AuthenticationError.EXPIRED)
    return expires_s + skew_s


def time_claim(claims: Claims, name: str) -> float | None:
    """Return a claim in seconds since 1970; None if the token does not have it."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise AuthenticationError(f"the token's claim {name!r} is not a number of seconds", "INVALID_TOKEN")
    try:
        seconds = float(value)
    except OverflowError:  # a number of hundreds of digits
        seconds = math.inf
    if not math.isfinite(seconds):  # 1e999 would never expire
        raise AuthenticationError(f"the token's claim {name!r} is not a number of seconds", "INVALID_TOKEN")
    return seconds


def audiences(claims: Claims, name: str) -> list[object]:
    found = claims.get(name)
    return found if isinstance(found, list) else [found]


def role(value: object, claim: str) -> str:
    """Return the role in the value of `claim`: a text, or the first text of a list."""
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, str) or not value:
        raise AuthenticationError(f"the token has no role in its claim {claim!r}", "INVALID_TOKEN")
    if len(value) > MAX_ROLE_CHARACTERS:
        raise AuthenticationError(
            f"the role in the token is longer than {MAX_ROLE_CHARACTERS} characters", "INVALID_TOKEN"
        )
    return value
