"""The memory store fulfils the contract about order and completion."""

import pytest
from tests.unit.local_store.stores import Listener, Owner, read_all

from pybroker.errors import LedgerFenced, NoSuchLedger, StoreError
from pybroker.ledgers.memory_store import MemoryCursorStore, MemoryLedgerStore


async def test_completions_of_a_turn_come_later_in_one_list_for_each_listener() -> None:
    store, first, second = MemoryLedgerStore(), Listener(), Listener()
    one, two = await store.create_ledger(), await store.create_ledger()
    runs = [first.append(store, one, 0, [b"a"]), first.append(store, two, 0, [b"b"])]
    other = second.append(store, two, 1, [b"c"])
    assert not first.calls
    await first.settled()
    assert first.calls == [(runs, None)]
    assert second.calls == [([other], None)]
    assert await store.list_ledgers() == [one, two]


async def test_entries_are_read_within_bounds() -> None:
    store, listener = MemoryLedgerStore(), Listener()
    ledger_id = await store.create_ledger()
    listener.append(store, ledger_id, 0, [b"12345"] * 10)
    assert len((await store.read(ledger_id, 4, 3, 1000)).payloads) == 3
    assert len((await store.read(ledger_id, 4, 10, 6)).payloads) == 2
    assert await read_all(store, ledger_id) == [b"12345"] * 10
    with pytest.raises(StoreError, match="does not exist"):
        await store.read(ledger_id, 10, 1, 1)


async def test_a_sealed_ledger_takes_no_appends_and_a_deleted_one_is_gone() -> None:
    store, listener = MemoryLedgerStore(), Listener()
    ledger_id = await store.create_ledger()
    listener.append(store, ledger_id, 0, [b"a"])
    assert (await store.seal(ledger_id)).entry_count == 1
    assert not listener.open_runs
    listener.append(store, ledger_id, 1, [b"b"])
    await listener.settled()
    assert [type(error) for error in listener.errors] == [LedgerFenced]
    await store.delete_ledger(ledger_id)
    with pytest.raises(NoSuchLedger):
        await store.read(ledger_id, 0, 1, 1)
    assert await store.create_ledger() > ledger_id
    await store.flush()
    await store.close()


async def test_cursors_are_snapshot_and_deltas() -> None:
    store, owner = MemoryCursorStore(), Owner(b"state")
    done: list[StoreError | None] = []
    store.append_delta("c", b"1", done.append)
    assert done == []
    assert await store.load("c") == (None, [b"1"])
    store.attach("c", owner)
    await store.detach("c")
    await store.detach("unknown")
    assert await store.load("c") == (b"state", [])
    await store.delete("c")
    assert await store.load("c") == (None, [])
