"""Selection of the broker that explains a topic in a cluster: the owner of its bundle, if the owner is a pybroker.

A bundle without an owner is assigned by a lookup. Each wait is short, because the owner or the leader may be frozen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from pybroker.admin.calls.owner_lookup import looked_up_owner, registered_broker, shown_broker
from pybroker.admin.calls.redirects import base_url, redirect
from pybroker.broker.explain.ownership import TopicBundle
from pybroker.broker.explain.topics import explain_metadata
from pybroker.cluster.ownership.bundle_ownership import BundleUnloading, OwnerKind
from pybroker.errors import AdminError, MetadataError, ServiceNotReady, StoreError
from pybroker.model.findings import Finding
from pybroker.model.system_topics import is_heartbeat_namespace

if TYPE_CHECKING:
    from pybroker.admin.calls.call import Call
    from pybroker.cluster.advertised_addresses import LookupResult
    from pybroker.cluster.ownership.bundle_ownership import BundleOwnership
    from pybroker.model.names import TopicName

PROBE_WAIT_S = 2.0
"""For any HTTP answer of another broker."""


def owner_shown(call: Call) -> dict[str, Any]:
    """Return the JSON member `owner`: the bundle of the path's topic, and the id of this broker if it owns the bundle.
    Empty for a standalone broker.
    """
    ownership, name = call.broker.ownership, call.topic_name()
    if ownership is None or not _has_bundle(call, name):
        return {}
    bundle = ownership.bundle_of(name)
    owner = ownership.registry.own_broker.broker_id if ownership.serves(bundle) else None
    return {"owner": {"bundle": str(bundle), "broker": owner}}


def _has_bundle(call: Call, name: TopicName) -> bool:
    return call.resources.namespace(name.namespace) is not None or is_heartbeat_namespace(name.namespace)


async def explained_elsewhere(call: Call, name: TopicName) -> Response | list[Finding] | None:
    """Return a redirect to the owner of topic `name`, or findings that state why no owner can explain the topic; None
    if this broker explains it.
    """
    ownership = call.broker.ownership
    if ownership is None or call.broker.partitioned.get(name) is not None:
        return None
    if not _has_bundle(call, name):
        return None
    subject = TopicBundle(name, str(ownership.bundle_of(name)), ownership.registry.own_broker.broker_id)
    try:
        is_authoritative = call.flag("authoritative")
        owner = await looked_up_owner(call, ownership, name, PROBE_WAIT_S, is_authoritative=is_authoritative)
    except BundleUnloading:
        return [subject.unloading()]
    except (AdminError, ServiceNotReady, TimeoutError) as error:
        return [subject.without_owner(str(error) or "the broker that must assign an owner does not respond")]
    except (MetadataError, StoreError) as error:
        session = call.broker.metadata_store.session_report
        unreachable = explain_metadata(f"Topic {name} is not served", session, call.runtime.clock, waits=True)
        return [*unreachable, subject.not_served(str(error))]
    if owner.kind is OwnerKind.HERE:
        return None
    return await _at(call, ownership, subject, owner.urls)


async def _at(
    call: Call, ownership: BundleOwnership, subject: TopicBundle, urls: LookupResult
) -> Response | list[Finding]:
    broker = registered_broker(ownership, urls)
    membership, others = call.broker.membership, call.broker.other_brokers
    assert others is not None, "a broker with an ownership has it"
    url = base_url(urls, call.scope["scheme"])
    owner = shown_broker(ownership, urls)
    if not url or not await others.is_answering(url, PROBE_WAIT_S):
        return [subject.owner_not_answering(owner, is_registered=broker is not None)]
    registration = membership.registrations.get(owner) if membership is not None else None
    if registration is not None and not registration.is_pybroker:
        return [subject.owner_without_explain(owner, registration.broker.version)]
    return redirect(call, ownership, urls)


async def owner_conflict(call: Call, name: TopicName) -> list[Finding]:
    """Return a finding if this broker serves topic `name`, but the ownership document in the metadata store is missing
    or was not written by this broker. Otherwise, or if the document cannot be read, return an empty list.
    """
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
