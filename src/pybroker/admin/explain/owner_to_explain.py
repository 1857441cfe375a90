"""The broker of a cluster that explains a topic: its owner, if the owner is a pybroker that answers.

A topic whose bundle has no owner gets one by a lookup, as when a client connects. Everything ends within `LOOKUP_WAIT_S` and
`PROBE_WAIT_S`, because the owner or the leader may be frozen.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.responses import Response

from pybroker.admin.calls.redirects import base_url, redirect
from pybroker.broker.explain.ownership import TopicBundle
from pybroker.broker.explain.topics import explain_metadata
from pybroker.cluster.ownership.bundle_ownership import BundleUnloading, Owner, OwnerKind
from pybroker.errors import AdminError, MetadataError, ServiceNotReady, StoreError
from pybroker.model.findings import Finding
from pybroker.model.system_topics import is_heartbeat_namespace

if TYPE_CHECKING:
    from pybroker.admin.calls.call import Call
    from pybroker.cluster.advertised_addresses import LookupResult
    from pybroker.cluster.broker_registry import RegisteredBroker
    from pybroker.cluster.ownership.bundle_ownership import BundleOwnership
    from pybroker.model.names import TopicName

LOOKUP_WAIT_S = 5.0
"""For the lookup that gives a bundle an owner."""
PROBE_WAIT_S = 2.0
"""For any HTTP answer of another broker."""


def owner_shown(call: Call) -> dict[str, Any]:
    """Return the bundle of the path's topic, and this broker if it is the owner; nothing for a broker that is alone."""
    ownership, name = call.broker.ownership, call.topic_name()
    if ownership is None or not _has_bundle(call, name):
        return {}
    bundle = ownership.bundle_of(name)
    owner = ownership.registry.own_broker.broker_id if ownership.serves(bundle) else None
    return {"owner": {"bundle": str(bundle), "broker": owner}}


def _has_bundle(call: Call, name: TopicName) -> bool:
    return call.resources.namespace(name.namespace) is not None or is_heartbeat_namespace(name.namespace)


async def explained_elsewhere(call: Call, name: TopicName) -> Response | list[Finding] | None:
    """Return the redirect to the owner of `name`, or why no owner can explain it; None if this broker explains it."""
    ownership = call.broker.ownership
    if ownership is None or call.broker.partitioned.get(name) is not None:
        return None
    if not _has_bundle(call, name):
        return None
    subject = TopicBundle(name, str(ownership.bundle_of(name)), ownership.registry.own_broker.broker_id)
    try:
        owner = await _owner(call, ownership, name)
    except BundleUnloading:
        return [subject.unloading()]
    except (AdminError, ServiceNotReady, TimeoutError) as error:
        return [subject.without_owner(str(error) or "the broker that decides does not answer")]
    except (MetadataError, StoreError) as error:
        session = call.broker.metadata_store.session_report
        unreachable = explain_metadata(f"Topic {name} is not served", session, call.runtime.clock, waits=True)
        return [*unreachable, subject.not_served(str(error))]
    if owner.kind is OwnerKind.HERE:
        return None
    return await _at(call, ownership, subject, owner.urls)


async def _owner(call: Call, ownership: BundleOwnership, name: TopicName) -> Owner:
    """Return the owner, after a lookup at the broker that decides if there is none."""
    owner = await ownership.owner_of(name, None, is_authoritative=call.flag("authoritative"))
    if owner.kind is not OwnerKind.REDIRECT:
        return owner
    others = call.broker.other_brokers
    assert others is not None, "a broker with an ownership has it"
    authoritative = "true" if owner.is_authoritative else "false"
    path = f"/lookup/v2/topic/{name.domain}/{name.namespace}/{quote(name.local_name, safe='')}?authoritative={authoritative}"
    url = base_url(owner.urls, call.scope["scheme"])
    if not await others.is_answering(url, PROBE_WAIT_S):
        raise ServiceNotReady(f"broker {_id_of(ownership, owner.urls)}, which assigns it, does not answer")
    async with asyncio.timeout(LOOKUP_WAIT_S):
        await others.call(url, "GET", path, patience_s=0)
    found = await ownership.present_owner(ownership.bundle_of(name))
    if found is None:
        raise ServiceNotReady(f"broker {_id_of(ownership, owner.urls)}, which assigns it, gave it to no broker")
    return found


async def _at(
    call: Call, ownership: BundleOwnership, subject: TopicBundle, urls: LookupResult
) -> Response | list[Finding]:
    broker = _registered(ownership, urls)
    membership, others = call.broker.membership, call.broker.other_brokers
    assert others is not None, "a broker with an ownership has it"
    url = base_url(urls, call.scope["scheme"])
    owner = broker.broker_id if broker is not None else url
    if not url or not await others.is_answering(url, PROBE_WAIT_S):
        return [subject.owner_not_answering(owner, is_registered=broker is not None)]
    registration = membership.registrations.get(owner) if membership is not None else None
    if registration is not None and not registration.is_pybroker:
        return [subject.owner_without_explain(owner, registration.broker.version)]
    return redirect(call, ownership, urls)


def _registered(ownership: BundleOwnership, urls: LookupResult) -> RegisteredBroker | None:
    return next(
        (each for each in ownership.registry.brokers().values() if set(each.addresses) & set(urls) - {""}), None
    )


def _id_of(ownership: BundleOwnership, urls: LookupResult) -> str:
    broker = _registered(ownership, urls)
    return broker.broker_id if broker is not None else urls.http_url or urls.http_url_tls


async def owner_conflict(call: Call, name: TopicName) -> list[Finding]:
    """Return whether the stored ownership document contradicts this broker, which serves the topic."""
    ownership = call.broker.ownership
    if ownership is None:
        return []
    bundle = ownership.bundle_of(name)
    try:
        found = await ownership.conflicting_owner(bundle)
    except (MetadataError, StoreError):
        return []  # reported by its own finding
    if found is None:
        return []
    return [TopicBundle(name, str(bundle), ownership.registry.own_broker.broker_id).owner_conflict(found)]
