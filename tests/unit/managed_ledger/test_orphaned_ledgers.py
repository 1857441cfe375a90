"""A start deletes the orphaned ledgers of a crash, and no other ledgers."""

from dataclasses import replace
from pathlib import Path
from random import Random

import msgspec
import pytest
from tests.unit.managed_ledger.stack import LOCAL, PATH, LocalStack, Stack, entry, read_all

from pybroker.errors import StoreError
from pybroker.ledgers.ledger_store import LedgerSummary, told_ids
from pybroker.managed_ledger.info.managed_ledger_info import CompactedInfo, CursorInfo, ManagedLedgerInfo
from pybroker.managed_ledger.ledger_list import LedgerList
from pybroker.managed_ledger.orphaned_ledgers import (
    delete_orphaned_ledgers,
    find_orphaned_ledgers,
    ledger_ids_in,
    lost_names_text,
    named_ledger_ids,
)


async def clean(stack: Stack, stored_ids: list[int]) -> list[int]:
    """Return the remaining ledgers after a search through `stored_ids`."""
    await delete_orphaned_ledgers(stack.store, await find_orphaned_ledgers(stack.store, stack.metadata, stored_ids))
    return await stack.store.list_ledgers()


async def test_a_ledger_that_was_made_and_never_named_goes(stack: Stack) -> None:
    managed = await stack.open()
    await stack.topic.publish(*[entry(0)] * 25)
    named = managed.ledgers.ledger_ids()
    left = await stack.store.create_ledger()
    await stack.crash()
    stored = await stack.store.list_ledgers()
    assert stored == [*named, left]
    assert await clean(stack, stored) == named


async def test_what_was_made_since_the_start_is_not_looked_at(stack: Stack) -> None:
    await stack.crash()
    stored = await stack.store.list_ledgers()
    made = await stack.store.create_ledger()
    assert await clean(stack, stored) == [made]


async def test_a_ledger_that_is_to_become_a_view_is_named_while_it_is_written(stack: Stack) -> None:
    managed = await stack.open()
    view = await managed.begin_compacted(0)
    await stack.crash()
    stored = await stack.store.list_ledgers()
    assert view in stored
    assert await clean(stack, stored) == stored
    await stack.open()
    assert view not in await stack.store.list_ledgers(), "opening its managed ledger deletes it"


@pytest.mark.parametrize("parts", [[], ["compacted"], ["trimmed"], ["compacted", "trimmed", "deleted"]])
def test_what_is_read_quickly_of_a_document_is_all_that_it_names(parts: list[str]) -> None:
    ledgers = LedgerList([LedgerSummary(3, 1, 1, 1), LedgerSummary(5, 2, 2, 2)])
    ledgers.add_ledger(9)
    info = ManagedLedgerInfo(1, msgspec.Raw(ledgers.encode()), {"s": CursorInfo("id", (3, -1))}, 1)
    if "compacted" in parts:
        info.compacted = CompactedInfo(4, 1, 1, (3, 0))
    if "trimmed" in parts:
        info.trimmed = [1, 2]
    info.deleted = "deleted" in parts
    value = msgspec.json.encode(info)
    assert ledger_ids_in(PATH, value) == named_ledger_ids(info)
    for newer in (
        value.replace(b'{"version":1', b'{"version":2'),
        value.replace(b'"ledgers":{"version":1', b'"ledgers":{"version":2'),
    ):
        assert newer != value
        with pytest.raises(StoreError, match="version 2"):
            ledger_ids_in(PATH, newer)


def test_of_very_many_ledgers_the_first_are_told() -> None:
    assert told_ids([3, 1]) == "1, 3"
    assert told_ids(range(1, 5000)) == "1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 4989 more"


@pytest.mark.parametrize("document", [None, b"{"], ids=["lost", "damaged"])
async def test_what_lost_its_name_and_holds_entries_is_kept(stack: Stack, document: bytes | None) -> None:
    managed = await stack.open()
    await stack.topic.publish(entry(0))
    full, empty = managed.current_ledger_id, await stack.store.create_ledger()
    await stack.crash()
    stored = await stack.store.list_ledgers()
    if document is None:
        await stack.metadata.delete(PATH)
        found = await find_orphaned_ledgers(stack.store, stack.metadata, stored)
        assert found.lost_names(stack.store) == {full: 1}
        assert f": 1 entry in ledger {full}. " in lost_names_text(Path("/data"), found.entries, has_topics=True)
        assert await clean(stack, stored) == [full]
    else:
        await stack.metadata.put(PATH, document)
        assert await clean(stack, stored) == [full, empty]


async def test_one_that_cannot_be_looked_at_keeps_the_others_from_nothing(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [await stack.store.create_ledger() for _ in range(3)]
    await stack.crash()
    recover = stack.store.recover

    async def fails_once(ledger_id: int) -> LedgerSummary:
        if ledger_id == left[0]:
            raise StoreError("cannot be read")
        return await recover(ledger_id)

    monkeypatch.setattr(stack.store, "recover", fails_once)
    assert await clean(stack, await stack.store.list_ledgers()) == [left[0]]


async def test_an_open_ledger_that_is_not_there_counts_as_empty(stack: Stack) -> None:
    """As after a power cut with `journalSyncData=false`: metadata is durable, and the ledger that it names is not."""
    managed = await stack.open()
    kept = await stack.topic.publish(*[entry(0)] * 10)
    cursor = await stack.factory.create_cursor(managed, "s", kept[3], {})
    lost = await stack.topic.publish(*[entry(0)] * 2)
    assert await cursor.skip(8) == 8, "also what was acknowledged of it is known"
    await stack.store.delete_ledger(lost[0].ledger_id)
    managed = await stack.reopen()
    assert managed.ledgers.entry_count == 10
    assert managed.last_confirmed >= kept[-1]
    assert managed.cursors["s"].backlog_entries == 0
    (after,) = await stack.topic.publish(entry(0))
    assert after > lost[-1]
    assert await read_all(managed.cursors["s"]) == [after]


@pytest.mark.parametrize("seed", range(5))
async def test_a_power_cut_without_sync_costs_entries_and_not_the_topic(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.unit.managed_ledger.stack.LOCAL", replace(LOCAL, sync_data=False))
    stack = LocalStack()
    await stack.start()
    await stack.open()
    await stack.topic.publish(*[entry(0)] * 12)
    survivor = stack.disk.after_power_loss(Random(seed))
    await stack.factory.tasks.close()
    await stack.store.close()
    stack.disk = survivor
    await stack._open_store()
    stored = await stack.store.list_ledgers()
    managed = await stack.open()
    assert managed.ledgers.entry_count <= 12
    assert await stack.topic.publish(entry(0))
    leftovers = await find_orphaned_ledgers(stack.store, stack.metadata, stored)
    assert not leftovers.lost_names(stack.store)
    await delete_orphaned_ledgers(stack.store, leftovers)
    await stack.stop()


async def test_a_ledger_without_the_brokers_own_mark_is_neither_recovered_nor_deleted(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, others = await stack.store.create_ledger(), await stack.store.create_ledger()
    recovered: list[int] = []
    recover = stack.store.recover

    async def noted(ledger_id: int) -> LedgerSummary:
        recovered.append(ledger_id)
        return await recover(ledger_id)

    monkeypatch.setattr(stack.store, "recover", noted)
    monkeypatch.setattr(stack.store, "is_own", lambda ledger_id: ledger_id == own)
    await delete_orphaned_ledgers(stack.store, await find_orphaned_ledgers(stack.store, stack.metadata, [own, others]))
    assert recovered == [own]
    assert await stack.store.list_ledgers() == [others]
