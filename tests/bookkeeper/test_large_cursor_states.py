"""States of cursors at the frame limit of real bookies, which is 5 MB."""

from __future__ import annotations

import random

from tests.bookkeeper.conftest import connected
from tests.support.bookkeeper_cluster import BookKeeperCluster
from tests.support.bookkeeper_store_model import ModelCluster
from tests.support.pulsar_layout import LayoutBroker
from tests.unit.managed_ledger.stack import settled

from pybroker.bookkeeper import BookKeeperClient, BookKeeperOptions, Quorums
from pybroker.bookkeeper_store.client_options import NO_LIMIT, max_entry_bytes
from pybroker.bookkeeper_store.state_ledger import StateLedger, read_last
from pybroker.errors import StateTooLarge
from pybroker.managed_ledger.managed_cursor import ManagedCursor
from pybroker.managed_ledger.rollover import LedgerLimits
from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.model.position import EARLIEST
from pybroker.runtime.clock import Clock

OPTIONS = BookKeeperOptions(quorums=Quorums(2, 2, 2), **NO_LIMIT)
BATCHES = 36_000
WORDS = 16
"""Half of the messages of a batch of 1,024 take about 165 bytes."""


class RealBookies(ModelCluster):
    """Brokers whose ledgers are on real bookies; the documents are in memory."""

    def __init__(self, client: BookKeeperClient) -> None:
        super().__init__(random.Random(1))
        self.options = OPTIONS
        self._client = client

    def client(self, clock: Clock | None = None) -> BookKeeperClient:
        return self._client


async def test_bookies_store_the_largest_state_that_is_not_refused(cluster: BookKeeperCluster) -> None:
    async with connected(cluster, OPTIONS) as client:
        payload = random.Random(2).randbytes(max_entry_bytes(OPTIONS))
        ledger = await StateLedger.create(client, {})
        await ledger.add(payload)
        assert await read_last(client, ledger.ledger_id) == payload


async def test_state_beyond_the_frame_limit_pauses_and_is_stored_when_it_fits(cluster: BookKeeperCluster) -> None:
    metadata = MemoryMetadataStore()
    async with connected(cluster, OPTIONS) as client:
        broker = LayoutBroker(RealBookies(client), metadata, LedgerLimits())
        managed, topic = await broker.open()
        cursor = await broker.factory.create_cursor(managed, "sub", EARLIEST, {})
        for _ in range(BATCHES // 1000):
            topic.append(*[b"1;"] * 1000, message_count=64 * WORDS)
            await topic.settle()
        await settled(managed)
        chance = random.Random(3)
        for position in topic.positions:
            cursor.state.acknowledge_batch(position, [chance.getrandbits(63) for _ in range(WORDS)], 64 * WORDS)
        error = await _refusal(cursor)
        assert error.size_bytes > error.limit_bytes == max_entry_bytes(OPTIONS)
        assert cursor.size_limit.excess is not None
        assert cursor.is_paused_by_size or cursor.read_position < cursor.size_limit.excess.end
        half = topic.positions[BATCHES // 2]
        cursor.state.mark_delete_to(half)
        await cursor.persist()
        assert cursor.size_limit.excess is None
        expected = [cursor.state.ack_set_of(*position) for position in topic.positions]
        # A crash: the next owner reads the state from the bookies.
        await broker.factory.tasks.close()
        other = LayoutBroker(RealBookies(client), metadata, LedgerLimits())
        again, _ = await other.open()
        found = again.cursors["sub"]
        assert found.mark_delete_position == half
        assert [found.state.ack_set_of(*position) for position in topic.positions] == expected


async def _refusal(cursor: ManagedCursor) -> StateTooLarge:
    try:
        await cursor.persist()
    except StateTooLarge as error:
        return error
    raise AssertionError("the state was stored")
