"""Lookup responses in a cluster: the broker that serves a topic, or the broker that the client must ask instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pybroker.cluster.advertised_addresses import LookupResult
from pybroker.cluster.ownership.bundle_ownership import BundleOwnership, Owner, OwnerKind
from pybroker.errors import MetadataError, ServiceNotReady

if TYPE_CHECKING:
    from pybroker.broker.context.presence import Presence
    from pybroker.model.names import TopicName


class LookupAnswer(NamedTuple):
    """Result of a lookup. `is_redirect`: the client must repeat the lookup at this address. `is_authoritative`: the
    repeated lookup is authoritative, because that broker acquires the bundle or assigns it.
    """

    addresses: LookupResult
    is_redirect: bool = False
    is_authoritative: bool = True


async def cluster_lookup(
    ownership: BundleOwnership,
    presence: Presence,
    topic: TopicName,
    listener_name: str | None,
    *,
    is_authoritative: bool,
) -> LookupAnswer:
    """Look up the broker that serves `topic`. If no broker owns the topic's bundle, this broker may acquire it.

    Raises TopicNotFound, MetadataError, ServiceNotReady, StoreError.
    """
    if presence.is_closing:
        raise ServiceNotReady("the broker is stopping: repeat the lookup at another broker")
    owner = await ownership.owner_of(topic, listener_name, is_authoritative=is_authoritative)
    return LookupAnswer(
        addresses_of(owner, presence, listener_name), owner.kind is OwnerKind.REDIRECT, owner.is_authoritative
    )


def addresses_of(owner: Owner, presence: Presence, listener_name: str | None) -> LookupResult:
    """Return the addresses of `owner` for the listener. Raises MetadataError for an unknown listener."""
    if owner.kind is not OwnerKind.HERE:
        return owner.urls
    try:
        return presence.addresses.resolve(listener_name)
    except ServiceNotReady as error:
        raise MetadataError(str(error)) from error  # the error of Pulsar, as with another owner
