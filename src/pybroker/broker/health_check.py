"""Whether this broker works: it writes a message to a topic of its own, as a client would, and reads it back.

The topic is in a namespace named after the broker's address, which no one needs to create. It has no subscriptions, so what is in
it goes with retention like anything that everybody has acknowledged.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pybroker.broker.internal_producer import InternalProducer
from pybroker.errors import MetadataError, ServiceNotReady, StoreError
from pybroker.metadata import paths
from pybroker.model import system_topics
from pybroker.model.names import NamespaceName
from pybroker.wire.entry_metadata import metadata_span

if TYPE_CHECKING:
    from pybroker.broker.service import BrokerService

TIMEOUT_S = 10.0


class HealthCheck:
    """Owned by the broker service. A check that comes while one is under way waits: each proves the moment it is for."""

    def __init__(self, broker: BrokerService) -> None:
        self._broker = broker
        self._running = asyncio.Lock()

    async def run(self) -> None:
        """Raises BrokerError when the broker cannot store something now, or not say what it stored."""
        broker = self._broker
        if not broker.ready or broker.is_closing:
            raise ServiceNotReady("the broker is starting or stopping")
        try:
            async with asyncio.timeout(TIMEOUT_S), self._running:
                await broker.metadata_store.get(paths.cluster(broker.surroundings.config.cluster_name))
                await self._write_and_read()
        except (StoreError, TimeoutError) as error:
            raise MetadataError(f"the broker cannot store anything: {error or 'no answer in time'}") from error

    async def _write_and_read(self) -> None:
        topic = await self._broker.load_topic(system_topics.health_check(self._broker_id()), may_create=True)
        payload = b"%d" % self._broker.surroundings.clock.wall_ms()
        position = await InternalProducer.of(topic).publish(payload)
        read = await topic.ledger.read(position, 1, 1 << 16)
        entry = read.payloads[0]
        if entry[metadata_span(entry)[1] :] != payload:
            raise MetadataError(f"the broker reads at {position} what it did not write there")

    def is_own(self, namespace: NamespaceName) -> bool:
        """Whether `namespace` is that of this broker's checks, which exists without having been made."""
        return system_topics.is_heartbeat_namespace(namespace) and namespace.local_name == self._broker_id()

    def _broker_id(self) -> str:
        addresses = self._broker.addresses.resolve(None)
        return urlsplit(addresses.http_url or addresses.http_url_tls).netloc
