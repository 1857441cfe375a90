"""Ledgers with entries and without a name stop a start: no crash may leave one, wherever it cuts a ledger's life off.

One script makes ledgers, rolls over, trims, compacts, gives views up, and deletes topics; it is cut off before each operation
on disk and metadata, by a kill and by a power cut, and run again with each of its metadata writes failing.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from random import Random
from typing import Any

import msgspec
import pytest
from tests.fuzz.managed_ledger_life import Crashed, Life
from tests.support.fault_disk import FaultDisk

from pybroker.errors import StoreError
from pybroker.ledgers.ledger_store import AppendListener, AppendRun
from pybroker.local_store.store_options import LocalStoreOptions
from pybroker.managed_ledger.factory import ManagedLedgerFactory
from pybroker.managed_ledger.info.json_records import JsonRecord
from pybroker.managed_ledger.info.managed_ledger_info import CompactedInfo
from pybroker.managed_ledger.ledger_listener import ManagedLedgerListener
from pybroker.managed_ledger.managed_ledger import ManagedLedger
from pybroker.managed_ledger.orphaned_ledgers import delete_orphaned_ledgers, find_orphaned_ledgers
from pybroker.managed_ledger.retention import RetentionLimits
from pybroker.managed_ledger.rollover import LedgerLimits
from pybroker.managed_ledger.stored_info import StoredInfo
from pybroker.metadata.metadata_store import ANY_VERSION, Versioned

LIMITS = LedgerLimits(max_entries_per_ledger=4, min_rollover_ms=0)
OPTIONS = LocalStoreOptions(
    journal_file_bytes=16 << 10, max_batch_bytes=1, checkpoint_retry_s=0.01, snapshot_turn_ms=-1
)
ROOT = "/managed-ledgers/public/default/persistent/"
MANY = 200
LAST = 10_000


class _Heard(ManagedLedgerListener, AppendListener):
    """Whoever appends; nobody waits for a single append."""

    def entries_added(self, runs: list[AppendRun]) -> None:
        """It is stored."""

    def split_context(self, context: object, entry_count: int) -> tuple[object, object]:
        raise AssertionError("these stores know the outcome of every append")

    def fenced(self, error: StoreError) -> None:
        raise AssertionError("nobody else writes here") from error

    def append_failed(self, runs: list[AppendRun], error: StoreError) -> None:
        """It is not."""

    def append_completed(self, runs: list[AppendRun], error: StoreError | None) -> None:
        """It is stored, or not."""


class Script:
    """Everything that gives ledgers names and takes them. A step that fails is passed over, as its caller would."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._open: dict[str, ManagedLedger] = {}

    async def run(self) -> None:
        steps: Sequence[Callable[[], Coroutine[Any, Any, None]]] = (
            lambda: self.open("a"),
            lambda: self.open("b"),
            lambda: self.append("a", 10),
            lambda: self.append("b", 3),
            lambda: self.compact("a"),
            self.checkpoint,
            lambda: self.append("a", 6),
            lambda: self.compact("a"),
            lambda: self.compact("a", is_given_up=True),
            lambda: self.trim("a"),
            self.checkpoint,
            lambda: self.compact("b", is_given_up=True),
            lambda: self.close("b"),
            lambda: self.delete("a"),
            lambda: self.open("b"),
            lambda: self.open("a"),
            lambda: self.append("a", 5),
            lambda: self.append("b", 9),
            lambda: self.delete("b"),
            self.checkpoint,
            lambda: self.trim("a"),
        )
        for step in steps:
            try:
                await step()
            except (StoreError, KeyError):
                continue

    async def open(self, name: str) -> None:
        managed = self._open[name] = await self._life.factory.open(ROOT + name)
        managed.retention = RetentionLimits()
        managed.listen(_Heard())

    async def append(self, name: str, count: int) -> None:
        managed = self._open[name]
        for _ in range(count):
            managed.append([bytes(60)], [1], 60, None)
            await self._rest()

    async def compact(self, name: str, *, is_given_up: bool = False) -> None:
        managed, store = self._open[name], self._life.store
        before = managed.compacted
        ledger_id = await managed.begin_compacted(managed.compacted_drops)
        store.append(AppendRun(_Heard(), ledger_id, 0, [b"left"] * 3, [1] * 3, 12, None))
        await self._rest()
        if is_given_up:
            await managed.drop_compacted()
            return
        await store.seal(ledger_id)
        try:
            await managed.replace_compacted(before, CompactedInfo(ledger_id, 3, 12, tuple(managed.last_confirmed)))  # type: ignore[arg-type]
        except StoreError:
            managed.discard_compacted(ledger_id)
        await self._rest()

    async def trim(self, name: str) -> None:
        await self._open[name].truncate()
        await self._rest()

    async def checkpoint(self) -> None:
        await self._life.store._checkpointer.run()

    async def close(self, name: str) -> None:
        await self._open.pop(name).close()

    async def delete(self, name: str) -> None:
        await self._life.factory.delete(self._open.pop(name))

    async def _rest(self) -> None:
        while len(self._life.factory.tasks):  # noqa: ASYNC110 - on a loop without time
            await asyncio.sleep(0.001)


class Machine:
    """One disk and one metadata store, and the lives on them."""

    def __init__(self, seed: int, patch: pytest.MonkeyPatch) -> None:
        self._chance = Random(seed)
        self._patch = patch
        self._values: dict[str, Versioned] = {}
        self._life = Life(self._chance, 1000.0, FaultDisk(), self._values, patch)

    def run(self, plan: Callable[[Life], None], *, is_power_loss: bool) -> bool:
        """Run the script with what `plan` does to it, crash, and start twice; whether the script was cut off."""
        plan(self._life)
        is_cut = not self._runs_to_its_end()
        try:
            for _ in range(2):  # the second one after a crash of the first, which had deleted what was empty
                self._crash(is_power_loss=is_power_loss)
                assert self._lost_names() == {}, "a start is refused"
        finally:
            self._life.bury()
        return is_cut

    def _runs_to_its_end(self) -> bool:
        try:
            self._life.start(OPTIONS, LIMITS)
            self._life.run(Script(self._life).run())
        except Crashed:
            return False
        return True

    def _crash(self, *, is_power_loss: bool) -> None:
        old = self._life
        assert not old.broken, old.broken
        survivor = old.disk.after_power_loss(self._chance) if is_power_loss else old.disk.after_kill()
        now_s = old.loop.time() + 1
        old.bury()
        self._life = Life(self._chance, now_s, survivor, self._values, self._patch)
        self._life.start(OPTIONS, LIMITS)

    def _lost_names(self) -> dict[int, int]:
        """For what a start would be refused; it deletes what is empty."""
        life = self._life

        async def find() -> dict[int, int]:
            found = await find_orphaned_ledgers(life.store, life.metadata, await life.store.list_ledgers())
            await delete_orphaned_ledgers(life.store, found)
            assert found.lost_names(life.store) == found.entries, "the journal is synced"
            return found.entries

        return life.run(find())


def cut_everywhere(step: int, *, is_power_loss: bool) -> None:
    for operation in range(0, LAST, step):
        with pytest.MonkeyPatch.context() as patch:
            here = Machine(operation, patch)
            if not here.run(
                lambda life, at=operation: setattr(life.faults, "crash_after", at),  # type: ignore[misc]
                is_power_loss=is_power_loss,
            ):
                assert operation > MANY, "the script is too short to show anything"
                return
    raise AssertionError("the script never ends")


@pytest.mark.parametrize("is_power_loss", [False, True], ids=["kill", "power cut"])
def test_no_crash_leaves_entries_in_a_ledger_without_a_name(is_power_loss: bool) -> None:
    cut_everywhere(1, is_power_loss=is_power_loss)


def test_no_metadata_write_that_fails_leaves_entries_in_a_ledger_without_a_name() -> None:
    for failing in range(60):
        for is_answer_lost in (False, True):
            with pytest.MonkeyPatch.context() as patch:
                here = Machine(failing, patch)
                here.run(partial(fail_metadata, number=failing, is_answer_lost=is_answer_lost), is_power_loss=False)


def fail_metadata(life: Life, number: int, *, is_answer_lost: bool) -> None:
    """Of the metadata writes, the one with this number fails: before it took effect, or although it did."""
    faults, left = life.faults, number
    operation_that_fails = "metadata_answer" if is_answer_lost else "metadata_write"

    def step(operation: str, name: str) -> None:
        nonlocal left
        faults(operation, name)
        if operation == operation_that_fails:
            left -= 1
            if left == -1:
                faults.has_refused = True
                raise OSError(errno.EIO, "metadata fails")

    life.disk.plan = step


def metadata_forgets_before_it_is_deleted(patch: pytest.MonkeyPatch) -> None:
    info = StoredInfo.info
    patch.setattr(StoredInfo, "info", lambda self: msgspec.structs.replace(info(self), trimmed=[]))


def a_deleted_topic_is_forgotten_first(patch: pytest.MonkeyPatch) -> None:
    async def delete(self: ManagedLedgerFactory, managed: ManagedLedger) -> None:
        await managed.close()
        await self.metadata.delete(managed.name)
        record = JsonRecord(self.metadata, managed.name, Versioned(b"", ANY_VERSION))
        await self._delete_stored(managed.document.info(), record)

    patch.setattr(ManagedLedgerFactory, "delete", delete)


@pytest.mark.parametrize("plant", [metadata_forgets_before_it_is_deleted, a_deleted_topic_is_forgotten_first])
def test_a_name_that_goes_too_early_is_found(plant: Callable[[pytest.MonkeyPatch], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        with pytest.raises(AssertionError, match="a start is refused"):
            cut_everywhere(2, is_power_loss=False)
