"""The interface by which lookups know the brokers of a cluster, its leader, and the leader's choice of a broker for a
bundle.

A broker with an embedded metadata store has no registry. It owns every bundle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pybroker.cluster.advertised_addresses import LookupResult


@dataclass(frozen=True, slots=True)
class RegisteredBroker:
    """The part of a broker's registration that lookups need. An address is empty if the broker does not have it."""

    broker_id: str
    """The id of the broker, `host:webPort`, under which it is registered."""
    web_service_url: str
    web_service_url_tls: str
    broker_service_url: str
    broker_service_url_tls: str
    advertised_listeners: Mapping[str, LookupResult] = field(default_factory=dict, hash=False)
    """Addresses by listener name; empty for a broker without `advertisedListeners`."""
    load_manager_class: str = ""
    start_timestamp_ms: int = 0
    version: str = ""

    @property
    def addresses(self) -> LookupResult:
        """The addresses for a client that requests no listener."""
        return LookupResult(
            self.broker_service_url, self.broker_service_url_tls, self.web_service_url, self.web_service_url_tls
        )


class BrokerRegistry(Protocol):
    """The members of the cluster, as one broker knows them. All methods except `choose_broker` use caches that watches
    update.
    """

    @property
    def own_broker(self) -> RegisteredBroker:
        """This broker, even while it is not registered."""

    def brokers(self) -> Mapping[str, RegisteredBroker]:
        """Return the registered brokers by id, without unusable registrations."""

    def leader(self) -> RegisteredBroker | None:
        """Return the elected leader; None if there is no leader, or if the leader is not registered."""

    def is_leader(self) -> bool:
        """Return whether this broker is certainly the leader now."""

    def assign(self, bundle: str, broker_id: str) -> None:
        """As the leader, decide that the registered broker `broker_id` shall acquire `bundle`, because the present
        owner is about to unload the bundle.
        """

    async def choose_broker(self, bundle: str) -> RegisteredBroker:
        """Return the broker that shall acquire `bundle` (`tenant/namespace/0x00000000_0x40000000`). Raises
        ServiceNotReady if no broker may have the bundle.

        Called on the leader, or on any broker while the cluster has no leader. Repeated calls return the same broker
        until the bundle is acquired or the broker is gone.
        """
