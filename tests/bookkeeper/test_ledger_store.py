"""The contract of ledger stores on real bookies."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.bookkeeper.conftest import connected
from tests.support.bookkeeper_cluster import BookKeeperCluster
from tests.unit.ledgers import test_store_contract as contract

from pybroker.bookkeeper import BookKeeperOptions, Quorums
from pybroker.bookkeeper_store.bookkeeper_ledger_store import BookKeeperLedgerStore
from pybroker.bookkeeper_store.client_options import NO_LIMIT, max_entry_bytes
from pybroker.bookkeeper_store.naming_limit import NamingLimit
from pybroker.ledgers.ledger_store import LedgerPurpose, LedgerStore
from pybroker.memory.broker_memory import Memory
from pybroker.model.position import Position
from pybroker.runtime.clock import Clock
from pybroker.wire.entry_columns import message_counts

OPTIONS = BookKeeperOptions(quorums=Quorums(3, 2, 2), **NO_LIMIT)


class OwnLedgers(BookKeeperLedgerStore):
    """Lists only its own ledgers, because other tests use the cluster too."""

    own: set[int]

    async def create_ledger(
        self,
        purpose: LedgerPurpose = LedgerPurpose.ENTRIES,
        owner: str = "",
        compacted_up_to: Position | None = None,
    ) -> int:
        ledger_id = await super().create_ledger(purpose, owner, compacted_up_to)
        self.own.add(ledger_id)
        return ledger_id

    async def list_ledgers(self) -> list[int]:
        return [each for each in await super().list_ledgers() if each in self.own]


@pytest.fixture
async def store(cluster: BookKeeperCluster) -> AsyncIterator[LedgerStore]:
    async with connected(cluster, OPTIONS) as client:
        clock = Clock()
        made = OwnLedgers(
            client,
            Memory.ample(clock),
            message_counts,
            max_entry_bytes=max_entry_bytes(OPTIONS),
            naming=NamingLimit(clock, None),
        )
        made.own = set()
        yield made
        await made.close()


ON_SEVERAL_STORES = "test_stored_entries_equal_appended_ones"
globals().update(
    {name: test for name, test in vars(contract).items() if name.startswith("test_") and name != ON_SEVERAL_STORES}
)
