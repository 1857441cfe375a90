"""Ledger ids from sequential nodes of ZooKeeper: calls at the same time share requests, and ids rise in the order of the calls."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from pybroker.bookkeeper.zookeeper_metadata import MAX_IDS_AT_ONCE, ZooKeeperLedgerMetadata
from pybroker.zookeeper import CreateOp, DeleteOp, Stat, ZooKeeperClient


class _Server:
    """Counts the sequential nodes. With `is_slow`, it answers a creation when the test calls `answer`."""

    def __init__(self) -> None:
        self.number = 0
        self.batches: list[int] = []
        self.nodes: set[str] = set()
        self.is_slow = False
        self._answers = asyncio.Semaphore(0)

    async def answer(self) -> None:
        self._answers.release()
        for _ in range(20):
            await asyncio.sleep(0)

    async def exists(self, _path: str) -> None:
        return None

    async def multi(self, changes: Sequence[CreateOp | DeleteOp]) -> list[Any]:
        results: list[Any] = []
        for change in changes:
            if isinstance(change, DeleteOp):
                self.nodes.remove(change.path)
                results.append(None)
            else:
                path = f"{change.path}{self.number:010d}"
                self.number += 1
                self.nodes.add(path)
                results.append((path, cast(Stat, None)))
        if isinstance(changes[0], CreateOp):
            self.batches.append(len(changes))
            await (self._answers.acquire() if self.is_slow else asyncio.sleep(0))
        return results


def _ledgers(server: _Server) -> ZooKeeperLedgerMetadata:
    return ZooKeeperLedgerMetadata(cast(ZooKeeperClient, server))


async def test_calls_that_wait_share_one_request() -> None:
    server = _Server()
    ledgers = _ledgers(server)
    count = MAX_IDS_AT_ONCE + 20
    found = await asyncio.gather(*(ledgers.new_ledger_id() for _ in range(count)))
    assert found == list(range(count))
    assert server.batches == [1, MAX_IDS_AT_ONCE, 19]
    assert not server.nodes


async def test_call_never_gets_id_that_was_assigned_before_it() -> None:
    """Another broker may have used a later id for the same topic in between."""
    server = _Server()
    ledgers = _ledgers(server)
    server.is_slow = True
    calls = [asyncio.create_task(ledgers.new_ledger_id()) for _ in range(4)]
    await asyncio.sleep(0)
    await server.answer()  # the first call; the next batch is for the three others
    calls[2].cancel()
    calls[3].cancel()
    server.number = 100  # ids of another broker
    late = asyncio.create_task(ledgers.new_ledger_id())
    await server.answer()
    await server.answer()
    assert [await calls[0], await calls[1], await late] == [0, 1, 100]
    server.is_slow = False
    assert await ledgers.new_ledger_id() == 101
    assert server.batches == [1, 3, 1, 1]
