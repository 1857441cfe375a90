"""The contract of metadata stores, against a real ZooKeeper."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.support.metadata_contract import *  # noqa: F403  (the tests of the contract)

from pybroker.metadata.metadata_store import MetadataStore
from pybroker.metadata.zookeeper_metadata_store import ZooKeeperMetadataStore
from pybroker.zookeeper import ClientOptions, ServerAddresses


@pytest.fixture
async def store(chroot: ServerAddresses) -> AsyncIterator[MetadataStore]:
    opened = await ZooKeeperMetadataStore.open(chroot, ClientOptions(session_timeout_ms=10_000), 30)
    yield opened
    await opened.close()
