"""REST calls that concern all bundles of a namespace, which several brokers of a cluster may own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from pybroker.admin.calls.own_address import broker_id
from pybroker.admin.calls.redirects import base_url
from pybroker.cluster.bundles import Bundle
from pybroker.cluster.ownership.bundle_ownership import OwnerKind
from pybroker.errors import AdminError, BrokerError, ServiceNotReady
from pybroker.runtime import logs

if TYPE_CHECKING:
    from pybroker.admin.calls.call import Call
    from pybroker.cluster.ownership.namespace_bundle import NamespaceBundle
    from pybroker.model.names import NamespaceName


async def on_each_bundle(
    call: Call,
    namespace: NamespaceName,
    behind: str,
    act: Callable[[Bundle | None], Awaitable[None]],
    *,
    may_acquire: bool,
    method: str | None = None,
) -> None:
    """Call `act` for each bundle that this broker owns, and forward the call to the owners of the other bundles.
    Afterwards raise the first error.

    A standalone broker calls `act(None)` once. With `may_acquire`, bundles without an owner are assigned first;
    otherwise they are skipped. `behind` is the path after the bundle; `method` replaces the method of the call.
    """
    ownership, others = call.broker.ownership, call.broker.other_brokers
    if ownership is None or others is None:
        await act(None)
        return
    failure: AdminError | BrokerError | None = None
    for bundle in ownership.bundles_of(namespace):
        try:
            if may_acquire:
                owner = await ownership.owner_of_bundle(bundle, None, is_authoritative=False)
            else:
                present = await ownership.present_owner(bundle)
                if present is None:
                    continue
                owner = present
            if owner.kind is OwnerKind.HERE:
                await act(bundle.range)
            else:
                path = f"/admin/v2/namespaces/{namespace}/{bundle.range}{behind}"
                await others.call(base_url(owner.urls, call.scope["scheme"]), method or call.scope["method"], path)
        except (AdminError, BrokerError) as error:
            failure = failure or error
    if failure is not None:
        raise failure


def destination_url(call: Call, destination: str | None) -> str | None:
    """Return the URL of the broker `destination`, which must become the owner of a bundle. None without a destination,
    or if this broker is standalone and is the destination. Raises AdminError 409 for an unknown broker.
    """
    if not destination or (call.broker.ownership is None and destination == broker_id(call)):
        return None
    brokers = {} if call.broker.ownership is None else call.broker.ownership.registry.brokers()
    broker = brokers.get(destination)
    if broker is None:
        known = ", ".join(sorted(brokers)) or f"only {broker_id(call)}"
        raise AdminError(409, f"The destination broker {destination} is not running. Running brokers: {known}")
    return base_url(broker.addresses, call.scope["scheme"])


async def assign(call: Call, bundle: NamespaceBundle, url: str) -> None:
    """Make the broker at `url` acquire `bundle`, by an authoritative lookup of a topic in it. This also works with Java
    brokers. A failure is logged; the leader then assigns the bundle at the next lookup.
    """
    others = call.broker.other_brokers
    assert others is not None, "checked by `destination_url`"
    try:
        await others.look_up(url, bundle, is_authoritative=True)
    except (AdminError, ServiceNotReady) as error:
        logs.warning("bundle.not_assigned", bundle=str(bundle), broker=url, reason=str(error))
