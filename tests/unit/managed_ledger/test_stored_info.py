"""Writers of the managed ledger info: beside a model of several owners, and single cases."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.planting import Plant, found_by_walk
from tests.support.waiting import until
from tests.unit.managed_ledger.stack import MemoryStack, entry, settled
from tests.unit.managed_ledger.stored_document_model import FAULTS, STEPS, Step, draw_script, run_script

from pybroker.errors import LedgerFenced, StoreError
from pybroker.managed_ledger.info import json_records
from pybroker.managed_ledger.info.json_records import MAX_UNKNOWN_PUTS, JsonRecord
from pybroker.managed_ledger.info.managed_ledger_info import ManagedLedgerInfo, decode_info
from pybroker.managed_ledger.ledger_list import LedgerList
from pybroker.managed_ledger.stored_info import StoredInfo
from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.metadata.metadata_store import ANY_VERSION, NOT_EXISTING
from pybroker.model.position import Position

PATH = "/managed-ledgers/public/default/persistent/topic"
SCRIPTS_FOR_A_BUG = 400


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 5), st.sampled_from(FAULTS)), max_size=20))
@settings(max_examples=150, deadline=None, database=None, derandomize=True)
def test_stored_info_owners_equal_model(steps: list[Step]) -> None:
    run_script(steps)


@pytest.mark.long
def test_stored_info_owners_equal_model_for_long() -> None:
    run_many(5000)


def run_many(count: int) -> None:
    for seed in range(count):
        run_script(draw_script(seed, 30))


def test_scripts_pass_without_mutant() -> None:
    run_many(SCRIPTS_FOR_A_BUG)


# --- mutants, each of which must be found
# -------------------------------------------------------------------------------


def an_unknown_version_is_whatever_is_there(patch: pytest.MonkeyPatch) -> None:
    async def look(self: JsonRecord) -> bool:
        found = await self._metadata.get(self.path)
        self._version = NOT_EXISTING if found is None else found.version
        self._unknown.clear()
        return False

    patch.setattr(JsonRecord, "_has_come_late", look)


def a_put_names_no_version(patch: pytest.MonkeyPatch) -> None:
    store = JsonRecord.store

    async def of_any_version(self: JsonRecord, info: ManagedLedgerInfo) -> None:
        metadata, self._metadata = self._metadata, _AnyVersion(self._metadata)  # type: ignore[assignment]
        try:
            await store(self, info)
        finally:
            self._metadata = metadata

    patch.setattr(JsonRecord, "store", of_any_version)


class _AnyVersion:
    def __init__(self, metadata: Any) -> None:
        self._metadata = metadata
        self.get = metadata.get

    async def put(self, path: str, value: bytes, version: int) -> int:
        return await self._metadata.put(path, value, ANY_VERSION)  # type: ignore[no-any-return]


def only_versions_are_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(json_records, "digest", lambda value: b"the same")


def what_was_tried_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(json_records, "MAX_UNKNOWN_PUTS", 1)
    look = JsonRecord._has_come_late

    async def without(self: JsonRecord) -> bool:
        self._unknown[:] = [b""]
        return await look(self)

    patch.setattr(JsonRecord, "_has_come_late", without)


def a_state_that_is_there_is_not_put_again(patch: pytest.MonkeyPatch) -> None:
    look = JsonRecord._has_come_late

    async def always(self: JsonRecord) -> bool:
        await look(self)
        return True

    patch.setattr(JsonRecord, "_has_come_late", always)


def who_is_fenced_tries_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StoredInfo, "require_owned", lambda self: None)


def a_version_that_was_not_met_is_taken_for_anothers(patch: pytest.MonkeyPatch) -> None:
    look = JsonRecord._has_come_late

    async def fence(self: JsonRecord) -> bool:
        if len(self._unknown) > 1:
            self._unknown.clear()
        return await look(self)

    patch.setattr(JsonRecord, "_has_come_late", fence)


@pytest.mark.parametrize(
    "plant",
    [
        an_unknown_version_is_whatever_is_there,
        a_put_names_no_version,
        only_versions_are_compared,
        what_was_tried_is_forgotten,
        a_state_that_is_there_is_not_put_again,
        who_is_fenced_tries_again,
        a_version_that_was_not_met_is_taken_for_anothers,
    ],
)
def test_model_finds_mutant(plant: Plant) -> None:
    with found_by_walk(plant):
        run_many(SCRIPTS_FOR_A_BUG)


# --- one by one -----------------------------------------------------------------------------------------------------------


class Silent(MemoryMetadataStore):
    """Answers no put."""

    async def put(self, path: str, value: bytes, expected_version: int = ANY_VERSION) -> int:
        raise StoreError("no answer")


async def test_what_is_remembered_of_puts_without_an_answer_has_a_limit() -> None:
    ledgers = LedgerList()
    ledgers.add_ledger(1)
    document = StoredInfo(JsonRecord(Silent(), PATH, None), ledgers)
    for number in range(MAX_UNKNOWN_PUTS + 10):
        with pytest.raises(StoreError):
            await document.change_properties({"n": str(number)})
    assert isinstance(document.record, JsonRecord)
    assert len(document.record._unknown) == MAX_UNKNOWN_PUTS
    assert document.properties == {}


async def test_a_document_that_somebody_deleted_is_not_made_again() -> None:
    metadata, ledgers = MemoryMetadataStore(), LedgerList()
    ledgers.add_ledger(1)
    document = StoredInfo(JsonRecord(metadata, PATH, None), ledgers)
    await document.save()
    await metadata.delete(PATH)
    for _ in range(2):
        with pytest.raises(LedgerFenced):
            await document.save()
    assert await metadata.get(PATH) is None


@pytest.fixture
async def stack() -> MemoryStack:
    made = MemoryStack()
    await made.start()
    return made


async def somebody_writes(stack: MemoryStack) -> bytes:
    found = await stack.metadata.get(PATH)
    assert found is not None
    await stack.metadata.put(PATH, found.value + b" ", found.version)
    return found.value + b" "


async def test_a_fenced_managed_ledger_appends_trims_and_stores_nothing_more_and_what_it_has_stays(
    stack: MemoryStack,
) -> None:
    managed = await stack.open()
    written = await stack.topic.publish(*[entry(number) for number in range(5)])
    theirs = await somebody_writes(stack)
    for _ in range(2):
        with pytest.raises(LedgerFenced):
            await managed.document.change_properties({"a": "1"})
    assert len(stack.topic.fenced_by) == 1
    assert managed.properties == {}
    with pytest.raises(LedgerFenced, match="look the topic up again"):
        stack.topic.append(entry(6))
    with pytest.raises(LedgerFenced):
        await managed.trim()
    await settled(managed)
    await managed.close()
    stored = await stack.metadata.get(PATH)
    assert stored is not None
    assert stored.value == theirs
    again = await stack.open()
    assert again.ledgers.entry_count == len(written) == 5
    assert again.last_confirmed == Position(*written[-1])


async def test_a_fenced_managed_ledger_is_not_deleted(stack: MemoryStack) -> None:
    managed = await stack.open()
    await stack.topic.publish(entry(0))
    await somebody_writes(stack)
    with pytest.raises(LedgerFenced):
        await stack.factory.delete(managed)
    assert (await stack.open()).ledgers.entry_count == 1


async def test_who_listens_only_after_it_was_fenced_is_told(stack: MemoryStack) -> None:
    managed = await stack.open()
    first = stack.topic
    await somebody_writes(stack)
    with pytest.raises(LedgerFenced):
        await managed.document.save()
    assert len(first.fenced_by) == 1
    second = type(first)(managed)
    await settled(managed)
    await asyncio.sleep(0)
    assert len(second.fenced_by) == 1


# --- many saves at once ---------------------------------------------------------------------------------------------------


class Gated(MemoryMetadataStore):
    """Puts wait for the test, which lets them pass or fail one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[asyncio.Future[None]] = []
        self.put_bytes = 0

    async def put(self, path: str, value: bytes, expected_version: int = ANY_VERSION) -> int:
        passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(passed)
        await passed
        self.put_bytes += len(value)
        return await super().put(path, value, expected_version)

    async def let_all_pass(self, tasks: list[asyncio.Task[None]]) -> None:
        while not all(task.done() for task in tasks):
            for each in self.waiting:
                if not each.done():
                    each.set_result(None)
            await asyncio.sleep(0)


async def begun(tasks: list[asyncio.Task[None]]) -> None:
    for _ in tasks:
        await asyncio.sleep(0)


def gated_document() -> tuple[Gated, StoredInfo]:
    metadata, ledgers = Gated(), LedgerList()
    ledgers.add_ledger(1)
    return metadata, StoredInfo(JsonRecord(metadata, PATH, None), ledgers)


async def stored_properties(metadata: MemoryMetadataStore) -> dict[str, str]:
    found = await metadata.get(PATH)
    assert found is not None
    return decode_info(PATH, found.value).properties


async def test_saves_that_wait_for_a_put_share_the_next_one() -> None:
    metadata, document = gated_document()
    changes = [asyncio.ensure_future(document.change_properties({str(number): "x"})) for number in range(100)]
    await begun(changes)
    await metadata.let_all_pass(changes)
    assert len(metadata.waiting) == 2
    assert len(await stored_properties(metadata)) == 100


async def test_bytes_stored_for_many_changes_at_once_are_linear() -> None:
    sizes = []
    for count in (100, 200, 400):
        metadata, document = gated_document()
        changes = [asyncio.ensure_future(document.change_properties({f"{number:04}": "x"})) for number in range(count)]
        await begun(changes)
        await metadata.let_all_pass(changes)
        sizes.append(metadata.put_bytes)
    assert sizes[2] - sizes[1] < 2.1 * (sizes[1] - sizes[0])


async def test_a_put_that_fails_refuses_the_save_that_began_it_and_the_next_puts_what_waits() -> None:
    metadata, document = gated_document()
    changes = [asyncio.ensure_future(document.change_properties({str(number): "x"})) for number in range(4)]
    await begun(changes)
    metadata.waiting[0].set_result(None)
    await asyncio.wait(changes[:1])
    await until(lambda: len(metadata.waiting) == 2)
    metadata.waiting[1].set_exception(StoreError("a planned failure"))
    await asyncio.wait(changes[1:2])
    await metadata.let_all_pass(changes)
    assert [change.exception() is None for change in changes] == [True, False, True, True]
    assert set(await stored_properties(metadata)) == {"0", "2", "3"} == set(document.properties)
    assert len(metadata.waiting) == 3


async def test_a_cancelled_save_leaves_the_others_their_put() -> None:
    metadata, document = gated_document()
    changes = [asyncio.ensure_future(document.change_properties({str(number): "x"})) for number in range(4)]
    await begun(changes)
    changes[0].cancel()
    await asyncio.wait(changes[:1])
    await metadata.let_all_pass(changes)
    assert [change.cancelled() for change in changes] == [True, False, False, False]
    assert set(await stored_properties(metadata)) >= {"1", "2", "3"}
