"""A login at an identity provider that has begun."""

from __future__ import annotations

from typing import NamedTuple


class PendingLogin(NamedTuple):
    """What the broker must know of a login until the browser comes back."""

    state: str
    nonce: str
    verifier: str
    redirect_uri: str
