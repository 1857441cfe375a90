"""Registered Java brokers: found, told apart from brokers of this implementation, and read again after some time."""

from __future__ import annotations

import json

import pytest
from tests.unit.managed_ledger.stack import FakeClock

from pybroker.errors import NotAllowedError
from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.metadata.metadata_store import NOT_EXISTING
from pybroker.transactions.java_brokers import BROKERS, RENEW_MS, JavaBrokers


async def test_transactions_are_refused_while_a_java_broker_is_registered() -> None:
    metadata, clock = MemoryMetadataStore(), FakeClock()
    brokers = JavaBrokers(metadata, clock)
    await brokers.require_none()
    own = json.dumps({"brokerVersionString": "4.2.4", "implementation": "pybroker"}).encode()
    await metadata.put(f"{BROKERS}/own:8080", own, NOT_EXISTING)
    java = json.dumps({"brokerVersionString": "4.2.4"}).encode()
    await metadata.put(f"{BROKERS}/java:8080", java, NOT_EXISTING)
    await brokers.require_none()  # the list is still as read before
    clock.now_ms += RENEW_MS
    with pytest.raises(NotAllowedError, match="the Java broker java:8080 is registered"):
        await brokers.require_none()
    await metadata.delete(f"{BROKERS}/java:8080", 0)
    clock.now_ms += RENEW_MS
    await brokers.require_none()
