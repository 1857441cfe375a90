"""How this broker is named in answers: by the address of its own HTTP port."""

from __future__ import annotations

from urllib.parse import urlsplit

from pybroker.admin.calls.call import Call


def web_url(call: Call) -> str:
    addresses = call.broker.presence.addresses.resolve(None)
    return addresses.http_url or addresses.http_url_tls


def broker_id(call: Call) -> str:
    """How this broker is named in lists: the address of its HTTP port."""
    return urlsplit(web_url(call)).netloc
