"""Redirects (307) of REST calls to the broker of the cluster that must handle them."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

from starlette.responses import Response

from pybroker.admin.calls.call import Call, no_content
from pybroker.admin.calls.served_at import ServedAt
from pybroker.cluster.bundles import checked_bundle
from pybroker.cluster.ownership.bundle_ownership import Owner, OwnerKind
from pybroker.cluster.ownership.namespace_bundle import NamespaceBundle
from pybroker.errors import AdminError
from pybroker.model.names import PERSISTENT, TopicName
from pybroker.model.system_topics import is_heartbeat_namespace
from pybroker.transactions.coordinators import partition_of
from pybroker.transactions.sinks import home_of

if TYPE_CHECKING:
    from pybroker.cluster.advertised_addresses import LookupResult
    from pybroker.cluster.ownership.bundle_ownership import BundleOwnership

AUTHORITATIVE = "authoritative"
DESTINATION = "destinationBroker"
LARGEST = "LARGEST"
HOT = "HOT"
"""Texts in place of a bundle in the path. The handler determines the bundle."""
_NO_BUNDLE = frozenset({LARGEST, HOT})


async def elsewhere(call: Call, ownership: BundleOwnership, place: ServedAt) -> Response | None:
    """Apply the rule `place` of a route to a call. Return a redirect to the broker that must handle the call, 204 for
    the unload of a bundle without an owner, or None if this broker must run the handler. None also for an invalid
    path, which the handler then reports.
    """
    match place:
        case ServedAt.TOPIC_OWNER:
            return await _to_topic_owner(call, ownership)
        case ServedAt.BUNDLE_OWNER | ServedAt.PRESENT_BUNDLE_OWNER:
            return await _to_bundle_owner(call, ownership, may_acquire=place is ServedAt.BUNDLE_OWNER)
        case ServedAt.NAMED_BROKER:
            broker = ownership.registry.brokers().get(call.name("broker"))
            if broker is None or broker.broker_id == ownership.registry.own_broker.broker_id:
                return None
            return redirect(call, ownership, broker.addresses)
        case ServedAt.COORDINATOR:
            return await _to_coordinator(call, ownership)
        case ServedAt.ANY | ServedAt.EXPLAINED:
            return None


async def _to_topic_owner(call: Call, ownership: BundleOwnership) -> Response | None:
    domain = call.domain() if "domain" in call.scope["path_params"] else PERSISTENT
    name = call.topic_name_of(domain)
    is_known = call.resources.namespace(name.namespace) is not None or is_heartbeat_namespace(name.namespace)
    if not is_known or call.broker.partitioned.get(name) is not None:
        return None
    owner = await ownership.owner_of(name, None, is_authoritative=call.flag(AUTHORITATIVE))
    return _to(call, ownership, owner, name)


async def _to_coordinator(call: Call, ownership: BundleOwnership) -> Response | None:
    coordinator_id = _coordinator_of(call)
    if coordinator_id is None or not 0 <= coordinator_id < call.broker.transactions.count:
        return None
    partition = partition_of(coordinator_id)
    owner = await ownership.owner_of(partition, None, is_authoritative=call.flag(AUTHORITATIVE))
    return _to(call, ownership, owner, partition)


def _coordinator_of(call: Call) -> int | None:
    parameters = call.scope["path_params"]
    if "sink" in parameters:
        return home_of(call.name("sink"))
    for name in ("coordinator", "most"):
        if name in parameters:
            return call.integer(name)
    return None if call.query("coordinatorId") is None else call.query_integer("coordinatorId", 0)


async def _to_bundle_owner(call: Call, ownership: BundleOwnership, *, may_acquire: bool) -> Response | None:
    namespace, text = call.namespace_name(), call.name("bundle")
    policies = call.resources.namespace(namespace)
    if policies is None or text in _NO_BUNDLE:
        return None
    bundle = NamespaceBundle(namespace, checked_bundle(text, policies.bundles.boundaries))
    if not may_acquire and call.query(DESTINATION):
        present = await ownership.present_owner(bundle)
        if present is None or is_moved_by_leader(ownership, present):
            return None  # the handler assigns the bundle to that broker
    return await to_owner_of(call, ownership, bundle, may_acquire=may_acquire)


def is_moved_by_leader(ownership: BundleOwnership, owner: Owner) -> bool:
    """Return whether this broker must handle the unload of a bundle to a destination, although `owner` owns the bundle.
    True if this broker is the leader and `owner` is a Java broker.

    A Java broker sends an unload with a destination back to the leader. Therefore the leader assigns the bundle to the
    destination, and redirects the call to the owner without the parameter for the destination.
    """
    return owner.kind is OwnerKind.OTHER and not owner.is_pybroker and ownership.registry.is_leader()


async def to_owner_of(
    call: Call, ownership: BundleOwnership, bundle: NamespaceBundle, *, may_acquire: bool, path: str | None = None
) -> Response | None:
    """Return a redirect to the owner of `bundle`; 204 if the bundle has no owner; None if this broker must handle the
    call.

    With `may_acquire`, a bundle without an owner is assigned first. `path` replaces the path of the call.
    """
    if may_acquire:
        owner = await ownership.owner_of_bundle(bundle, None, is_authoritative=call.flag(AUTHORITATIVE))
    else:
        present = await ownership.present_owner(bundle, is_authoritative=call.flag(AUTHORITATIVE))
        if present is None:
            return no_content()
        owner = present
    return _to(call, ownership, owner, bundle, path)


def _to(
    call: Call,
    ownership: BundleOwnership,
    owner: Owner,
    subject: TopicName | NamespaceBundle,
    path: str | None = None,
) -> Response | None:
    if owner.kind is OwnerKind.HERE:
        return None
    if not owner.urls.http_url and not owner.urls.http_url_tls:
        kind = "topic" if isinstance(subject, TopicName) else "bundle"
        raise AdminError(412, f"Failed to find ownership for {kind}:{subject}")
    if owner.kind is OwnerKind.REDIRECT:
        # Without a leader, each broker decides: the chosen one must not choose again.
        return redirect_with(call, owner.urls, is_authoritative=owner.is_authoritative, path=path)
    return redirect(call, ownership, owner.urls, path)


def redirect(
    call: Call, ownership: BundleOwnership, addresses: LookupResult, path: str | None = None, without: str = ""
) -> Response:
    """Return a redirect (307) to the broker at `addresses`, with the same path or with `path`. As in Pulsar, the
    redirect is authoritative if this broker is the leader: the target broker then acquires a bundle without an owner.

    `without`: a query parameter that is removed.
    """
    return redirect_with(call, addresses, is_authoritative=ownership.registry.is_leader(), path=path, without=without)


def redirect_with(
    call: Call, addresses: LookupResult, *, is_authoritative: bool, path: str | None = None, without: str = ""
) -> Response:
    """Return a redirect (307) to the broker at `addresses`, with the same path or with `path`.

    `is_authoritative`: that broker acquires a bundle without an owner. `without`: a query parameter that is removed.
    """
    pairs = parse_qsl(call.scope["query_string"].decode("latin-1"), keep_blank_values=True)
    query = [(name, value) for name, value in pairs if name not in (AUTHORITATIVE, without)]
    query.append((AUTHORITATIVE, "true" if is_authoritative else "false"))
    location = f"{base_url(addresses, call.scope['scheme'])}{path or call.scope['path']}?{urlencode(query)}"
    return Response(status_code=307, headers={"location": location})


def base_url(addresses: LookupResult, scheme: str) -> str:
    """Return the URL of another broker's REST API; "" if it has none. HTTPS is preferred if `scheme`, that of the
    request, is `https`, and HTTP otherwise.
    """
    plain, tls = addresses.http_url, addresses.http_url_tls
    return ((tls or plain) if scheme == "https" else (plain or tls)).rstrip("/")
