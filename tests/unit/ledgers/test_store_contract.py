"""The contract of ledger stores, which every implementation fulfils.

An implementation joins by a function in `STORES` that opens an empty store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap
from tests.support.bookkeeper_store_model import model_store
from tests.support.fault_disk import FaultDisk
from tests.unit.local_store.stores import Listener, open_store, read_all

from pybroker.errors import LedgerFenced, NoSuchLedger, StoreError
from pybroker.ledgers.ledger_store import LedgerPurpose, LedgerStore, LedgerTotals
from pybroker.ledgers.memory_store import MemoryLedgerStore

OWNER = "/managed-ledgers/public/default/persistent/topic"


async def open_memory() -> LedgerStore:
    return MemoryLedgerStore()


async def open_local() -> LedgerStore:
    store, fatal = await open_store(FaultDisk())
    assert not fatal
    return store


async def open_bookkeeper() -> LedgerStore:
    return model_store(Random(1))


STORES: dict[str, Callable[[], Awaitable[LedgerStore]]] = {
    "memory": open_memory,
    "local": open_local,
    "bookkeeper": open_bookkeeper,
}


@pytest.fixture(params=list(STORES))
async def store(request: pytest.FixtureRequest) -> AsyncIterator[LedgerStore]:
    made = await STORES[request.param]()
    yield made
    await made.close()


async def create(store: LedgerStore) -> int:
    return await store.create_ledger(LedgerPurpose.ENTRIES, OWNER)


async def filled(store: LedgerStore, listener: Listener, *payloads: bytes) -> int:
    ledger_id = await create(store)
    listener.append(store, ledger_id, 0, list(payloads))
    await listener.settled()
    return ledger_id


async def test_new_ledger_may_be_named(store: LedgerStore) -> None:
    assert store.may_be_named(await store.create_ledger(LedgerPurpose.ENTRIES, "/managed-ledgers/p/d/persistent/t"))


async def test_ledger_ids_rise(store: LedgerStore) -> None:
    ids = [await create(store) for _ in range(4)]
    ids.append(await store.create_ledger(LedgerPurpose.COMPACTED, OWNER))
    assert ids == sorted(set(ids))
    assert await store.list_ledgers() == ids
    await store.delete_ledger(ids[-1])
    assert await create(store) > ids[-1]


async def test_completions_come_later_and_in_order(store: LedgerStore) -> None:
    listener, ledger_id = Listener(), await create(store)
    runs = [listener.append(store, ledger_id, number, [b"%d" % number]) for number in range(20)]
    assert listener.calls == []
    await listener.settled()
    assert [run for completed, _ in listener.calls for run in completed] == runs
    assert listener.errors == []


async def test_appends_to_several_ledgers_do_not_mix(store: LedgerStore) -> None:
    listener = Listener()
    ids = [await create(store) for _ in range(3)]
    for number in range(10):
        for ledger_id in ids:
            listener.append(store, ledger_id, number, [b"%d:%d" % (ledger_id, number)])
    await listener.settled()
    for ledger_id in ids:
        assert await read_all(store, ledger_id) == [b"%d:%d" % (ledger_id, number) for number in range(10)]


async def test_seal_waits_for_appends_in_flight(store: LedgerStore) -> None:
    listener, ledger_id = Listener(), await create(store)
    listener.append(store, ledger_id, 0, [b"abc"])
    listener.append(store, ledger_id, 1, [b"de", b""])
    summary = await store.seal(ledger_id)
    assert not listener.open_runs, "completed before the seal returns"
    assert (summary.ledger_id, summary.entry_count, summary.size_bytes) == (ledger_id, 3, 5)
    assert summary.message_count in {3, None}
    assert await store.seal(ledger_id) == summary
    assert await store.recover(ledger_id) == summary


async def test_sealed_ledger_refuses_appends(store: LedgerStore) -> None:
    listener = Listener()
    ledger_id = await filled(store, listener, b"a")
    await store.seal(ledger_id)
    listener.append(store, ledger_id, 1, [b"b"])
    await listener.settled()
    assert [type(error) for error in listener.errors] == [LedgerFenced]
    assert await read_all(store, ledger_id) == [b"a"]


async def test_empty_ledger_is_sealed_with_no_entries(store: LedgerStore) -> None:
    ledger_id = await create(store)
    summary = await store.seal(ledger_id)
    assert (summary.entry_count, summary.size_bytes) == (0, 0)
    with pytest.raises(StoreError):
        await store.read(ledger_id, 0, 1, 1)


async def test_reads_respect_limits_and_return_at_least_one_entry(store: LedgerStore) -> None:
    listener = Listener()
    ledger_id = await filled(store, listener, *[b"12345"] * 10)
    for is_sealed in (False, True):
        if is_sealed:
            await store.seal(ledger_id)
        assert len((await store.read(ledger_id, 4, 3, 1000)).payloads) == 3
        assert 1 <= len((await store.read(ledger_id, 4, 6, 6)).payloads) <= 2
        assert len((await store.read(ledger_id, 9, 1, 0)).payloads) == 1
        with pytest.raises(StoreError):
            await store.read(ledger_id, 10, 1, 1)


async def test_buffered_entries_equal_stored_ones(store: LedgerStore) -> None:
    listener = Listener()
    ledger_id = await filled(store, listener, b"a", b"b")
    run = store.read_buffered(ledger_id, 1, 10, 100)
    assert run is None or run.payloads == [b"b"]
    assert store.read_buffered(ledger_id + 1, 0, 1, 1) is None


@pytest.mark.parametrize("operation", ["read", "seal", "recover"])
async def test_unknown_ledger_is_reported(store: LedgerStore, operation: str) -> None:
    known = await create(store)
    calls: dict[str, Awaitable[object]] = {
        "read": store.read(known + 100, 0, 1, 1),
        "seal": store.seal(known + 100),
        "recover": store.recover(known + 100),
    }
    for name, call in calls.items():
        if name == operation:
            with pytest.raises(NoSuchLedger):
                await call
        else:
            call.close()  # type: ignore[attr-defined]


async def test_deleted_ledger_is_gone(store: LedgerStore) -> None:
    listener = Listener()
    ledger_id, other = await filled(store, listener, b"a"), await filled(store, listener, b"b")
    await store.delete_ledger(ledger_id)
    await store.delete_ledger(ledger_id)
    await store.delete_ledger(ledger_id + 1000)
    with pytest.raises(NoSuchLedger):
        await store.read(ledger_id, 0, 1, 1)
    assert await store.list_ledgers() == [other]
    assert await read_all(store, other) == [b"b"]


async def test_deletion_beside_appends_completes_all_of_them(store: LedgerStore) -> None:
    listener, ledger_id = Listener(), await create(store)
    for number in range(5):
        listener.append(store, ledger_id, number, [b"x"])
    await asyncio.gather(store.delete_ledger(ledger_id), listener.settled())
    assert await store.list_ledgers() == []


async def test_flush_makes_earlier_appends_durable(store: LedgerStore) -> None:
    listener, ledger_id = Listener(), await create(store)
    listener.append(store, ledger_id, 0, [b"x"])
    await store.flush()
    await listener.settled()
    assert listener.errors == []


async def test_index_answers_exactly_or_not_at_all(store: LedgerStore) -> None:
    listener = Listener()
    ledger_id = await filled(store, listener, b"a", b"bc", b"def")
    index = store.index
    assert await index.totals_before(ledger_id, 2) in {LedgerTotals(2, 3), None}
    assert await index.message_count_of(ledger_id, BitMap([0, 2])) in {2, None}
    span = await index.publish_time_span(ledger_id, 0)
    assert span is None or 0 <= span[0] <= span[1] <= 3
    assert all(0 < point.entry_id < 3 for point in await index.points(ledger_id, 1))


@pytest.mark.parametrize("name", list(STORES))
@settings(max_examples=20, deadline=None)
@given(sizes=st.lists(st.lists(st.integers(0, 3000), min_size=1, max_size=4), max_size=8), cut=st.integers(0, 40))
def test_stored_entries_equal_appended_ones(name: str, sizes: list[list[int]], cut: int) -> None:
    async def run() -> None:
        store = await STORES[name]()
        listener, ledger_id = Listener(), await create(store)
        expected: list[bytes] = []
        for number, run_sizes in enumerate(sizes):
            payloads = [bytes([number % 256]) * size for size in run_sizes]
            listener.append(store, ledger_id, len(expected), payloads)
            expected += payloads
        await listener.settled()
        assert listener.errors == []
        if cut < len(expected):
            found = await store.read(ledger_id, cut, len(expected) - cut, 1 << 30)
            assert found.payloads == expected[cut : cut + len(found.payloads)]
        assert await read_all(store, ledger_id) == expected
        await store.close()

    asyncio.run(run())
