"""Authorization headers of HTTP. A module of its own, because importing it must not import asyncio."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pybroker.client.access import Access


def authorization_of(access: Access) -> str | None:
    """Return the authorization header, or None for TLS and for access without credentials. Raises AccessRefused and ValueError."""
    data = access.auth_data()
    if access.method == "token":
        if not data.isascii() or not data.decode().isprintable():  # the error of http.client would show the token
            raise ValueError("the token has characters that no token has: check where it comes from")
        return f"Bearer {data.decode()}"
    if access.method == "basic":
        return f"Basic {base64.b64encode(data).decode()}"
    return None
