"""Health check: publishes a message to a system topic and reads it back.

The topic's namespace exists without being created.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pybroker.errors import MetadataError, ServiceNotReady, StoreError
from pybroker.metadata import metadata_paths
from pybroker.model import system_topics
from pybroker.wire.entry_metadata import metadata_span

if TYPE_CHECKING:
    from pybroker.broker.context.presence import Presence
    from pybroker.broker.lifecycle.topic_manager import Topics
    from pybroker.metadata.metadata_store import MetadataStore
    from pybroker.runtime.runtime import Runtime

TIMEOUT_S = 10.0


class HealthCheck:
    """Executor of health checks. Checks run one after the other, so a request may wait for an earlier check."""

    def __init__(self, runtime: Runtime, metadata_store: MetadataStore, presence: Presence, topics: Topics) -> None:
        self._runtime = runtime
        self._metadata_store = metadata_store
        self._presence = presence
        self._topics = topics
        self._running = asyncio.Lock()

    async def run(self) -> None:
        """Check the broker. Raises BrokerError if a message is not stored and read back within TIMEOUT_S seconds."""
        if not self._presence.takes_clients:
            raise ServiceNotReady("the health check cannot run: the broker is starting or stopping")
        try:
            async with asyncio.timeout(TIMEOUT_S), self._running:
                await self._metadata_store.get(metadata_paths.cluster(self._runtime.config.cluster_name))
                await self._write_and_read()
        except (StoreError, TimeoutError) as error:
            raise MetadataError(
                f"the health check failed, because its message was not stored and read back: {str(error) or 'no response in time'}"
            ) from error

    async def _write_and_read(self) -> None:
        topic = await self._topics.load(system_topics.health_check(self._presence.broker_id), may_create=True)
        payload = b"%d" % self._runtime.clock.wall_ms()
        position = await topic.internal_producer().publish(payload)
        read = await topic.ledger.read(position, 1, 1 << 16)
        entry = read.payloads[0]
        if entry[metadata_span(entry)[1] :] != payload:
            raise MetadataError(
                f"the health check failed: the message read at {position} differs from the published message"
            )
