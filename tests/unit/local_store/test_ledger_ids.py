"""Ledger ids are reserved durably in blocks before they are used."""

from __future__ import annotations

import asyncio

import pytest

from pybroker.errors import StoreError
from pybroker.local_store.ledger_ids import LEDGER_ID_BLOCK, LedgerIds


class Table:
    """Records reservations; refuses them on request, and takes one iteration of the loop for each."""

    def __init__(self) -> None:
        self.ends: list[int] = []
        self.is_refusing = False

    async def reserve(self, end: int) -> None:
        await asyncio.sleep(0)
        if self.is_refusing:
            raise StoreError("no space")
        self.ends.append(end)


async def test_ids_reserved_by_the_start_need_no_reservation() -> None:
    table = Table()
    ids = LedgerIds(range(7, 10), table.reserve)
    assert [await ids.next() for _ in range(3)] == [7, 8, 9]
    assert table.ends == []
    assert (ids.first, ids.end) == (7, 10)


async def test_next_block_is_reserved_before_its_first_id_is_returned() -> None:
    table = Table()
    ids = LedgerIds(range(7, 7), table.reserve)
    assert await ids.next() == 7
    assert table.ends == [7 + LEDGER_ID_BLOCK]
    assert [await ids.next() for _ in range(LEDGER_ID_BLOCK - 1)][-1] == 6 + LEDGER_ID_BLOCK
    assert len(table.ends) == 1
    assert await ids.next() == 7 + LEDGER_ID_BLOCK
    assert table.ends[1:] == [ids.end] == [7 + 2 * LEDGER_ID_BLOCK]


async def test_concurrent_requests_reserve_one_block_and_get_different_ids() -> None:
    table = Table()
    ids = LedgerIds(range(1, 2), table.reserve)
    assert sorted(await asyncio.gather(*(ids.next() for _ in range(20)))) == list(range(1, 21))
    assert len(table.ends) == 1


async def test_failed_reservation_assigns_no_id_and_is_tried_again() -> None:
    table = Table()
    ids = LedgerIds(range(3, 3), table.reserve)
    table.is_refusing = True
    with pytest.raises(StoreError, match="no space"):
        await ids.next()
    assert ids.end == 3
    table.is_refusing = False
    assert await ids.next() == 3
