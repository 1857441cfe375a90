"""Lookup of the broker that owns a topic in a cluster. As in a client's lookup, a bundle without an owner is assigned."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import quote

from pybroker.admin.calls.redirects import base_url
from pybroker.cluster.ownership.bundle_ownership import OwnerKind
from pybroker.errors import ServiceNotReady

if TYPE_CHECKING:
    from pybroker.admin.calls.call import Call
    from pybroker.cluster.advertised_addresses import LookupResult
    from pybroker.cluster.broker_registry import RegisteredBroker
    from pybroker.cluster.ownership.bundle_ownership import BundleOwnership, Owner
    from pybroker.model.names import TopicName

LOOKUP_WAIT_S = 5.0
"""For the lookup that gives a bundle an owner."""


async def looked_up_owner(
    call: Call, ownership: BundleOwnership, name: TopicName, probe_s: float, *, is_authoritative: bool = False
) -> Owner:
    """Return the broker that owns the bundle of topic `name`: this broker or another one. With `is_authoritative`, this
    broker acquires the bundle if the bundle has no owner.

    `probe_s`: seconds within which the broker that assigns the bundle must respond to an HTTP request. Raises
    ServiceNotReady, TimeoutError or AdminError if that broker does not assign an owner; TopicNotFound if the namespace
    does not exist; MetadataError or StoreError if the metadata cannot be read or written.
    """
    owner = await ownership.owner_of(name, None, is_authoritative=is_authoritative)
    if owner.kind is not OwnerKind.REDIRECT:
        return owner
    others = call.broker.other_brokers
    assert others is not None, "a broker with an ownership has it"
    authoritative = "true" if owner.is_authoritative else "false"
    path = f"/lookup/v2/topic/{name.domain}/{name.namespace}/{quote(name.local_name, safe='')}?authoritative={authoritative}"
    url = base_url(owner.urls, call.scope["scheme"])
    assigning = shown_broker(ownership, owner.urls)
    if not await others.is_answering(url, probe_s):
        raise ServiceNotReady(
            f"broker {assigning}, which must assign an owner to the bundle of topic {name}, does not respond: send the request "
            "again later, or restart that broker"
        )
    async with asyncio.timeout(LOOKUP_WAIT_S):
        await others.call(url, "GET", path, patience_s=0)
    found = await ownership.present_owner(ownership.bundle_of(name))
    if found is None:
        raise ServiceNotReady(
            f"broker {assigning}, which must assign an owner to the bundle of topic {name}, has not done so: send the request "
            "again later"
        )
    return found


def registered_broker(ownership: BundleOwnership, urls: LookupResult) -> RegisteredBroker | None:
    """Return the registered broker that has one of the addresses `urls`, or None."""
    wanted = set(urls) - {""}
    return next((each for each in ownership.registry.brokers().values() if wanted & set(each.addresses)), None)


def shown_broker(ownership: BundleOwnership, urls: LookupResult) -> str:
    """Return the id of the registered broker with the addresses `urls`; if there is none, one of the addresses."""
    broker = registered_broker(ownership, urls)
    return broker.broker_id if broker is not None else next(filter(None, reversed(urls)), "")
