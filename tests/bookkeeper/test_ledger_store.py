"""The contract of ledger stores on real bookies."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.bookkeeper.conftest import connected
from tests.support.bookkeeper_cluster import BookKeeperCluster
from tests.unit.ledgers.test_store_contract import (
    test_appends_to_several_ledgers_do_not_mix as test_appends_to_several_ledgers_do_not_mix,
)
from tests.unit.ledgers.test_store_contract import (
    test_buffered_entries_equal_stored_ones as test_buffered_entries_equal_stored_ones,
)
from tests.unit.ledgers.test_store_contract import (
    test_completions_come_later_and_in_order as test_completions_come_later_and_in_order,
)
from tests.unit.ledgers.test_store_contract import test_deleted_ledger_is_gone as test_deleted_ledger_is_gone
from tests.unit.ledgers.test_store_contract import (
    test_deletion_beside_appends_completes_all_of_them as test_deletion_beside_appends_completes_all_of_them,
)
from tests.unit.ledgers.test_store_contract import (
    test_empty_ledger_is_sealed_with_no_entries as test_empty_ledger_is_sealed_with_no_entries,
)
from tests.unit.ledgers.test_store_contract import (
    test_flush_makes_earlier_appends_durable as test_flush_makes_earlier_appends_durable,
)
from tests.unit.ledgers.test_store_contract import (
    test_index_answers_exactly_or_not_at_all as test_index_answers_exactly_or_not_at_all,
)
from tests.unit.ledgers.test_store_contract import test_ledger_ids_rise as test_ledger_ids_rise
from tests.unit.ledgers.test_store_contract import (
    test_reads_respect_limits_and_return_at_least_one_entry as test_reads_respect_limits_and_return_at_least_one_entry,
)
from tests.unit.ledgers.test_store_contract import (
    test_seal_waits_for_appends_in_flight as test_seal_waits_for_appends_in_flight,
)
from tests.unit.ledgers.test_store_contract import (
    test_sealed_ledger_refuses_appends as test_sealed_ledger_refuses_appends,
)
from tests.unit.ledgers.test_store_contract import test_unknown_ledger_is_reported as test_unknown_ledger_is_reported

from pybroker.bookkeeper import BookKeeperOptions, Quorums
from pybroker.bookkeeper_store.bookkeeper_ledger_store import BookKeeperLedgerStore
from pybroker.bookkeeper_store.client_options import NO_LIMIT, max_entry_bytes
from pybroker.ledgers.ledger_store import LedgerPurpose, LedgerStore
from pybroker.memory.broker_memory import Memory
from pybroker.runtime.clock import Clock
from pybroker.wire.entry_metadata import entry_message_count

OPTIONS = BookKeeperOptions(quorums=Quorums(3, 2, 2), **NO_LIMIT)


class OwnLedgers(BookKeeperLedgerStore):
    """Lists only its own ledgers, because other tests use the cluster too."""

    own: set[int]

    async def create_ledger(self, purpose: LedgerPurpose = LedgerPurpose.ENTRIES, owner: str = "") -> int:
        ledger_id = await super().create_ledger(purpose, owner)
        self.own.add(ledger_id)
        return ledger_id

    async def list_ledgers(self) -> list[int]:
        return [each for each in await super().list_ledgers() if each in self.own]


@pytest.fixture
async def store(cluster: BookKeeperCluster) -> AsyncIterator[LedgerStore]:
    async with connected(cluster, OPTIONS) as client:
        clock = Clock()
        made = OwnLedgers(client, Memory.ample(clock), entry_message_count, max_entry_bytes=max_entry_bytes(OPTIONS))
        made.own = set()
        yield made
        await made.close()
