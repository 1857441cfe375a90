"""How one proves over HTTP who one is. Apart from the calls themselves, so that who only wants this imports no event loop."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pybroker.client.access import Access


def authorization_of(access: Access) -> str | None:
    """The header that proves who this is; None where TLS does, or nobody is anybody. Raises AccessRefused, and ValueError."""
    data = access.auth_data()
    if access.method == "token":
        if not data.isascii() or not data.decode().isprintable():  # the library's own refusal would show it
            raise ValueError("the token has characters that no token has: check where it comes from")
        return f"Bearer {data.decode()}"
    if access.method == "basic":
        return f"Basic {base64.b64encode(data).decode()}"
    return None
