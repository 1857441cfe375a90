"""Ledger metadata that are read from a ZooKeeper server that lags behind the others."""

from __future__ import annotations

from typing import cast

import pytest

from pybroker.bookkeeper.errors import NoSuchLedger
from pybroker.bookkeeper.ledger_paths import ledger_path
from pybroker.bookkeeper.zookeeper_metadata import ZooKeeperLedgerMetadata
from pybroker.zookeeper import ZooKeeperClient
from pybroker.zookeeper.errors import NoNode


class LaggingClient:
    """Knows the nodes of `others` only after a sync."""

    def __init__(self, others: dict[str, bytes]) -> None:
        self._others = others
        self._known: dict[str, bytes] = {}

    async def get(self, path: str) -> tuple[bytes, Stat]:
        if path not in self._known:
            raise NoNode(path)
        return self._known[path], Stat()

    async def sync(self, path: str) -> None:
        self._known = {each: value for each, value in self._others.items() if each.startswith(f"{path}/")}


class Stat:
    version = 3


async def test_ledger_that_the_server_does_not_know_yet_is_found() -> None:
    client = LaggingClient({f"/ledgers/{ledger_path(7)}": b"metadata"})
    metadata = ZooKeeperLedgerMetadata(cast("ZooKeeperClient", client))
    assert await metadata.read(7) == (b"metadata", 3)
    with pytest.raises(NoSuchLedger):
        await metadata.read(8)
