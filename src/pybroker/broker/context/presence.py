"""Addresses of this broker, and whether it accepts clients: from the time when it is ready until it stops."""

from __future__ import annotations

from urllib.parse import urlsplit

from pybroker.cluster.advertised_addresses import AdvertisedAddresses
from pybroker.model import system_topics
from pybroker.model.names import NamespaceName


class Presence:
    """Addresses and readiness of this broker."""

    addresses: AdvertisedAddresses

    def __init__(self) -> None:
        self.ready = False
        self.is_closing = False

    @property
    def takes_clients(self) -> bool:
        return self.ready and not self.is_closing

    @property
    def broker_id(self) -> str:
        found = self.addresses.resolve(None)
        return urlsplit(found.http_url or found.http_url_tls).netloc

    def is_own(self, namespace: NamespaceName) -> bool:
        """Return whether `namespace` is the namespace of this broker's health checks, which has no stored policies."""
        return system_topics.is_heartbeat_namespace(namespace) and namespace.local_name == self.broker_id
