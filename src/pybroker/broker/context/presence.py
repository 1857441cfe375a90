"""How a broker stands to the world: under which addresses it is known, and whether it takes clients now.

Owned by the broker service; who opens and closes its doors says it here, and everybody asks each time.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from pybroker.cluster.lookup import AdvertisedAddresses
from pybroker.model import system_topics
from pybroker.model.names import NamespaceName


class Presence:
    """A broker is ready once, and closing once, for good."""

    addresses: AdvertisedAddresses
    """Set once the ports are bound, before anybody is served."""

    def __init__(self) -> None:
        self.ready = False
        self.is_closing = False

    @property
    def takes_clients(self) -> bool:
        return self.ready and not self.is_closing

    @property
    def broker_id(self) -> str:
        """What other brokers would call this one: host and port of its HTTP address."""
        found = self.addresses.resolve(None)
        return urlsplit(found.http_url or found.http_url_tls).netloc

    def is_own(self, namespace: NamespaceName) -> bool:
        """Whether `namespace` is that of this broker's health checks, which exists without having been made."""
        return system_topics.is_heartbeat_namespace(namespace) and namespace.local_name == self.broker_id
