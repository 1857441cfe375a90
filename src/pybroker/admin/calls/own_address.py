"""Broker ids in REST responses. The id of a broker is the host name and port of its HTTP server."""

from __future__ import annotations

from urllib.parse import urlsplit

from pybroker.admin.calls.call import Call


def web_url(call: Call) -> str:
    addresses = call.broker.presence.addresses.resolve(None)
    return addresses.http_url or addresses.http_url_tls


def broker_id(call: Call) -> str:
    return urlsplit(web_url(call)).netloc


def broker_ids(call: Call) -> list[str]:
    """Return the ids of all registered brokers of the cluster; a standalone broker returns only its own id."""
    membership = call.broker.membership
    return [broker_id(call)] if membership is None else sorted(membership.brokers())
