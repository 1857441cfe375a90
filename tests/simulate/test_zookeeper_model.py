"""The contract of metadata stores against the simulation's model of ZooKeeper: what a real server passes, it passes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random

import pytest
from tests.simulate.zookeeper_model import ZooKeeperModel
from tests.support.metadata_contract import *  # noqa: F403  (the tests of the contract)

from pybroker.metadata.metadata_store import MetadataStore
from pybroker.metadata.zookeeper_metadata_store import ZooKeeperMetadataStore
from pybroker.zookeeper import ClientOptions, ServerAddresses


@pytest.fixture
async def store(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MetadataStore]:
    loop = asyncio.get_running_loop()
    model = ZooKeeperModel(loop, Random(1))
    model.delay_s = lambda: 0.0  # type: ignore[method-assign]
    monkeypatch.setattr(loop, "create_connection", model.connect)
    opened = await ZooKeeperMetadataStore.open(ServerAddresses.parse("model:1"), ClientOptions(), 30)
    yield opened
    await opened.close()
