"""Reads of single entries request about as many bytes as were asked for."""

from __future__ import annotations

import asyncio
from random import Random
from unittest.mock import patch

import pytest
from tests.support.bookie_model import ModelBookie, ModelMetadata, ModelNetwork
from tests.support.ledger_story import LoopClock
from tests.support.stepped_loop import SteppedLoop

from pybroker.bookkeeper import (
    BookKeeperClient,
    BookKeeperOptions,
    LedgerReader,
    Quorums,
)

ENTRIES = 200
MAX_BYTES = 1 << 20


async def read_all(reader: LedgerReader) -> list[int]:
    """Return the size of each entry."""
    sizes: list[int] = []
    while len(sizes) < ENTRIES:
        entries = await reader.read(len(sizes), 1000, MAX_BYTES)
        sizes += [len(entry.payload) for entry in entries]
    return sizes


@pytest.mark.parametrize("entry_bytes", [100, 10_000, 100_000, 300_000])
def test_each_entry_is_requested_about_once(entry_bytes: int) -> None:
    requests = 0
    original = ModelBookie._read

    def counted(self: ModelBookie, flags: int, master_key: bytes, ledger_id: int, entry_id: int) -> tuple[int, bytes]:
        nonlocal requests
        requests += 1
        return original(self, flags, master_key, ledger_id, entry_id)

    async def run() -> list[int]:
        chance = Random(1)
        network = ModelNetwork(chance, 3)
        client = BookKeeperClient(
            ModelMetadata(chance),
            network,
            BookKeeperOptions(quorums=Quorums(3, 2, 2)),
            chance=chance,
            clock=LoopClock(),
            open_transport=network.open_transport,
        )
        writer = await client.create_ledger({})
        for _ in range(ENTRIES):
            await writer.add(b"x" * entry_bytes)
        await client.close_ledger(writer)
        sizes = await read_all(await client.open_ledger(writer.ledger_id))
        await client.close()
        return sizes

    with (
        patch.object(ModelBookie, "_read", counted),
        asyncio.Runner(loop_factory=lambda: SteppedLoop(Random(1), 0)) as runner,
    ):
        assert runner.run(run()) == [entry_bytes] * ENTRIES
    assert ENTRIES <= requests <= ENTRIES * 1.2
