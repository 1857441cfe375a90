"""Lookup responses in a cluster: the broker that serves a topic, or the broker that the client must ask instead.

If the owner of a bundle does not accept connections, a lookup waits until the bundle has another owner. The client
would otherwise fail to connect, and retry after increasing delays.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple

from pybroker.cluster.advertised_addresses import LookupResult
from pybroker.cluster.ownership.broker_probes import BrokerProbes
from pybroker.cluster.ownership.bundle_ownership import BundleOwnership, Owner, OwnerKind
from pybroker.errors import MetadataError, ServiceNotReady

CHECKS_WITHOUT_OWNER = 10
"""How many times more often a lookup is checked while its bundle has no owner, because the broker is not notified of
another leader or another choice."""

if TYPE_CHECKING:
    from pybroker.broker.context.presence import Presence
    from pybroker.model.names import TopicName
    from pybroker.runtime.runtime import Runtime


class LookupAnswer(NamedTuple):
    """Result of a lookup. `is_redirect`: the client must repeat the lookup at this address. `is_authoritative`: that
    broker acquires the bundle, or assigns it to a broker.
    """

    addresses: LookupResult
    is_redirect: bool = False
    is_authoritative: bool = True


class ClusterLookups:
    """Looks up the broker that serves a topic. This broker may acquire a bundle without an owner."""

    def __init__(self, runtime: Runtime, ownership: BundleOwnership, presence: Presence, probes: BrokerProbes) -> None:
        self._config = runtime.config
        self._clock = runtime.clock
        self._ownership = ownership
        self._presence = presence
        self._probes = probes
        self.parked = 0

    async def answer(
        self,
        topic: TopicName,
        listener_name: str | None,
        parking: Callable[[], AbstractContextManager[None]],
        *,
        is_authoritative: bool,
    ) -> LookupAnswer:
        """Return the broker that serves `topic`, or that the client must ask instead. If that broker is unreachable,
        first wait until it responds or another broker owns the topic, at most `parkedLookupTimeoutMs`.

        `parking` creates a context manager that is entered for this wait. `is_authoritative`: another broker has sent
        the client here to let this broker acquire the bundle. Raises TopicNotFound, ServiceNotReady, StoreError, and
        MetadataError if the listener is unknown or the bundle cannot be acquired.
        """
        owner = await self._owner(topic, listener_name, is_authoritative=is_authoritative)
        if self._is_lost(owner) and self.parked < self._config.max_parked_lookups:
            self.parked += 1
            try:
                with parking():
                    owner = await self._other_owner(owner, topic, listener_name, is_authoritative=is_authoritative)
            finally:
                self.parked -= 1
        return LookupAnswer(
            addresses_of(owner, self._presence, listener_name), owner.kind is OwnerKind.REDIRECT, owner.is_authoritative
        )

    async def _owner(self, topic: TopicName, listener_name: str | None, *, is_authoritative: bool) -> Owner:
        if self._presence.is_closing:
            raise ServiceNotReady("the broker is stopping: repeat the lookup at another broker")
        return await self._ownership.owner_of(topic, listener_name, is_authoritative=is_authoritative)

    async def _other_owner(
        self, owner: Owner, topic: TopicName, listener_name: str | None, *, is_authoritative: bool
    ) -> Owner:
        """Return the owner when it accepts connections, or after `parkedLookupTimeoutMs`."""
        bundle = self._ownership.bundle_of(topic)
        ends_ms = self._clock.monotonic_ms() + self._config.parked_lookup_timeout_ms
        while self._is_lost(owner) and (left_ms := ends_ms - self._clock.monotonic_ms()) > 0:
            pause_ms: float = self._config.parked_lookup_check_interval_ms
            if owner.kind is OwnerKind.REDIRECT:
                pause_ms /= CHECKS_WITHOUT_OWNER
            await self._ownership.document_changed(bundle, min(pause_ms, left_ms) / 1000)
            owner = await self._owner(topic, listener_name, is_authoritative=is_authoritative)
        return owner

    def _is_lost(self, owner: Owner) -> bool:
        return owner.kind is not OwnerKind.HERE and self._probes.is_unreachable(owner.internal_url)


def addresses_of(owner: Owner, presence: Presence, listener_name: str | None) -> LookupResult:
    """Return the addresses of `owner` for the listener `listener_name`. Raises MetadataError for an unknown listener."""
    if owner.kind is not OwnerKind.HERE:
        return owner.urls
    try:
        return presence.addresses.resolve(listener_name)
    except ServiceNotReady as error:
        raise MetadataError(str(error)) from error  # the error of Pulsar, as with another owner
