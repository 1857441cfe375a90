"""Java brokers of the same cluster. While one is registered, this broker opens no transactions.

A Java broker that takes over a topic could deliver aborted messages, and does not end transactions of this broker's
coordinators. Transactions that are already open continue. The list of registered brokers is read at most once in
`RENEW_MS` milliseconds.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from pybroker.errors import NotAllowedError
from pybroker.metadata.metadata_store import MetadataStore
from pybroker.runtime.clock import Clock

BROKERS = "/loadbalance/brokers"
RENEW_MS = 5_000
_OWN_IMPLEMENTATION = "pybroker"


class RegisteredBrokers(NamedTuple):
    """Ids of the registered brokers of both kinds."""

    java: list[str]
    own_kind: list[str]


class JavaBrokers:
    """The registered Java brokers."""

    def __init__(self, metadata: MetadataStore, clock: Clock) -> None:
        self._metadata = metadata
        self._clock = clock
        self._found: list[str] = []
        self._read_ms: float | None = None

    async def require_none(self) -> None:
        """Raise NotAllowedError while a Java broker is registered, StoreError if the list cannot be read."""
        now_ms = self._clock.monotonic_ms()
        if self._read_ms is None or now_ms - self._read_ms >= RENEW_MS:
            self._found = (await self.registered()).java
            self._read_ms = now_ms
        if self._found:
            raise NotAllowedError(
                f"Cannot open a transaction: the Java broker {self._found[0]} is registered at this cluster and could take "
                "over topics. A Java broker delivers messages of aborted transactions of this broker. Stop the Java "
                "brokers, or use their coordinators."
            )

    async def is_java_broker(self, broker_id: str) -> bool:
        """Return whether a Java broker is registered with this id. Raises StoreError."""
        found = await self._metadata.get(f"{BROKERS}/{broker_id}")
        return found is not None and _is_java(found.value)

    async def registered(self) -> RegisteredBrokers:
        """Return the ids of all registered brokers, Java brokers and pybroker brokers separately. Raises StoreError."""
        names = await self._metadata.children(BROKERS)
        values = await self._metadata.values_of([f"{BROKERS}/{name}" for name in names])
        found = RegisteredBrokers([], [])
        for name, value in zip(names, values, strict=True):
            if value is not None:
                (found.java if _is_java(value.value) else found.own_kind).append(name)
        return found


def _is_java(registration: bytes) -> bool:
    try:
        document = json.loads(registration)
    except ValueError:
        return False
    return isinstance(document, dict) and document.get("implementation") != _OWN_IMPLEMENTATION
