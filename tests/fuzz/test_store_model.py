"""The local store beside a plain model, with crashes at any disk operation.

What must hold: after a crash every entry that was completed is read back, in its place and unchanged, and nothing that was
never appended; a cursor's state is everything that was completed, then perhaps what was under way, in order; ledger ids rise
for ever; what was deleted stays deleted. A list of planted bugs shows that the model would notice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.support import fault_disk
from tests.support.fault_disk import FaultDisk
from tests.support.planting import Plant, found_by_walk
from tests.unit.local_store.stores import DIRECTORY, PATIENCE_S, Listener, Owner, read_all

from pybroker.errors import NoSuchLedger, StoreError
from pybroker.ledgers.ledger_store import AppendRun
from pybroker.local_store import local_store, start_up
from pybroker.local_store.checkpoint import checkpoint, checkpointer, cursor_registry
from pybroker.local_store.journal.journal_batcher import JournalBatcher
from pybroker.local_store.local_store import LocalStore
from pybroker.local_store.store_environment import StoreEnvironment
from pybroker.local_store.store_options import LocalStoreOptions
from pybroker.storage_format import journal_layout

_T = TypeVar("_T")

OPTIONS = LocalStoreOptions(
    journal_file_bytes=32 << 10,
    max_batch_bytes=4 << 10,
    checkpoint_max_bytes=1 << 40,
    checkpoint_max_entries=400,
    checkpoint_retry_s=0.001,
)
# Long enough for two blocks of a segment when a few are together, short enough to be quick.
SIZES = st.sampled_from((0, 1, 100, 700, 5000, 40_000))


class ModelLedger(Listener):
    """What was appended to one ledger, and how much of it was completed."""

    def __init__(self) -> None:
        super().__init__()
        self.appended: list[bytes] = []
        self.completed_count = 0
        self.is_open = True

    def append_completed(self, runs: list[AppendRun], error: StoreError | None) -> None:
        assert error is None, error
        for run in runs:
            assert run.first_entry_id == self.completed_count, "completions come in order"
            self.completed_count += len(run.payloads)
        super().append_completed(runs, error)


class ModelCursor(Owner):
    """All deltas ever given, and how many of them were completed."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[int] = []
        self.completed_count = 0

    def completed(self, error: StoreError | None) -> None:
        assert error is None, error
        self.completed_count += 1

    def check(self, found: bytes) -> None:
        least = self.ends[self.completed_count - 1] if self.completed_count else 0
        assert self.state.startswith(found), "deltas that were never given, or out of order"
        assert len(found) >= least, "a completed delta is lost"


class StoreMachine(RuleBasedStateMachine):
    """One store, crashed and opened again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.disk = FaultDisk()
        self.ledgers: dict[int, ModelLedger] = {}
        self.cursors: dict[str, ModelCursor] = {}
        self.deleted: set[int] = set()
        self.last_ledger_id = 0
        self.counter = 0
        self.fatal: list[BaseException] = []
        self.has_failed: asyncio.Event
        self.store: LocalStore

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return self.loop.run_until_complete(asyncio.wait_for(work, PATIENCE_S))

    @initialize()
    def start(self) -> None:
        self.fatal = []
        self.has_failed = asyncio.Event()
        self.store = self.run(LocalStore.open(DIRECTORY, OPTIONS, self.failed, StoreEnvironment(self.disk)))

    def failed(self, error: BaseException) -> None:
        self.has_failed.set()
        if not self.disk.is_off:
            self.fatal.append(error)

    def teardown(self) -> None:
        try:
            self.crash(Random(0), is_power_loss=False)
        finally:
            self.disk.plan = None
            self.run(self.store.close())
            self.loop.close()

    # What owners do

    @rule()
    def create(self) -> None:
        ledger_id = self.run(self.store.create_ledger())
        assert ledger_id > self.last_ledger_id, "a ledger id was given twice"
        self.last_ledger_id = ledger_id
        self.ledgers[ledger_id] = ModelLedger()

    def pick(self, number: int) -> int | None:
        is_open = [ledger_id for ledger_id, ledger in self.ledgers.items() if ledger.is_open]
        return is_open[number % len(is_open)] if is_open else None

    @rule(
        number=st.integers(0, 9),
        runs=st.lists(st.lists(SIZES, min_size=1, max_size=5), min_size=1, max_size=4),
        waits=st.booleans(),
    )
    def append(self, number: int, runs: list[list[int]], waits: bool) -> None:
        ledger_id = self.pick(number)
        if ledger_id is None:
            return
        ledger = self.ledgers[ledger_id]
        for sizes in runs:
            payloads = []
            for size in sizes:
                self.counter += 1
                payloads.append(Random(self.counter).randbytes(size))
            ledger.append(self.store, ledger_id, len(ledger.appended), payloads)
            ledger.appended += payloads
        if waits:
            self.run(ledger.settled())

    @rule(number=st.integers(0, 9))
    def seal(self, number: int) -> None:
        ledger_id = self.pick(number)
        if ledger_id is not None:
            ledger = self.ledgers[ledger_id]
            ledger.is_open = False
            summary = self.run(self.store.seal(ledger_id))
            assert summary.entry_count == len(ledger.appended) == ledger.completed_count
            assert summary.size_bytes == sum(map(len, ledger.appended))

    @rule(number=st.integers(0, 9))
    def delete(self, number: int) -> None:
        if self.ledgers:
            ledger_id = sorted(self.ledgers)[number % len(self.ledgers)]
            ledger = self.ledgers.pop(ledger_id)
            self.run(ledger.settled())
            self.run(self.store.delete_ledger(ledger_id))
            self.deleted.add(ledger_id)

    @rule(number=st.integers(0, 9), start=st.integers(0, 50), count=st.integers(1, 9), max_bytes=st.integers(1, 50_000))
    def read(self, number: int, start: int, count: int, max_bytes: int) -> None:
        if not self.ledgers:
            return
        ledger_id = sorted(self.ledgers)[number % len(self.ledgers)]
        ledger = self.ledgers[ledger_id]
        if ledger.completed_count:
            start %= ledger.completed_count
            run = self.run(self.store.read(ledger_id, start, count, max_bytes))
            assert 0 < len(run.payloads) <= count
            assert run.payloads == ledger.appended[start : start + len(run.payloads)]

    @rule(name=st.sampled_from("abc"), count=st.integers(1, 3), waits=st.booleans())
    def acknowledge(self, name: str, count: int, waits: bool) -> None:
        cursor = self.cursors.get(name)
        if cursor is None:
            cursor = self.cursors[name] = ModelCursor()
            self.store.attach(name, cursor)
        for _ in range(count):
            self.counter += 1
            delta = b"%d;" % self.counter
            cursor.state += delta
            cursor.ends.append(len(cursor.state))
            self.store.append_delta(name, delta, cursor.completed)
        if waits:
            self.run(self.store.flush())
            assert cursor.completed_count == len(cursor.ends)

    @rule(name=st.sampled_from("abc"), attaches=st.booleans())
    def detach(self, name: str, attaches: bool) -> None:
        if name in self.cursors:
            self.run(self.store.detach(name))
            assert self.loaded(name) == self.cursors[name].state
            if attaches:
                self.store.attach(name, self.cursors[name])

    @rule(name=st.sampled_from("abc"))
    def forget(self, name: str) -> None:
        if name in self.cursors:
            self.run(self.store.flush())
            self.run(self.store.delete(name))
            del self.cursors[name]

    @rule()
    def make_checkpoint(self) -> None:
        assert self.run(self.store._checkpointer.run())

    @rule(turns=st.integers(0, 3), number=st.integers(0, 9))
    def make_checkpoint_while_others_go_on(self, turns: int, number: int) -> None:
        running = self.loop.create_task(self.store._checkpointer.run())
        for _ in range(turns):
            self.run(asyncio.sleep(0))
        self.acknowledge("a", 1, waits=False)
        self.append(number, [[100]], waits=False)
        self.acknowledge("b", 1, waits=False)
        assert self.run(asyncio.wait_for(running, PATIENCE_S))

    # What befalls the machine

    @rule(seed=st.integers(0, 1 << 16), is_power_loss=st.booleans())
    def crash_between_operations(self, seed: int, is_power_loss: bool) -> None:
        self.crash(Random(seed), is_power_loss=is_power_loss)

    @rule(seed=st.integers(0, 1 << 16), steps=st.integers(0, 30), checkpoints=st.booleans())
    @precondition(lambda self: self.ledgers)
    def crash_at_an_operation(self, seed: int, steps: int, checkpoints: bool) -> None:
        """Power goes in the middle of appends and, if so, of a checkpoint."""
        self.disk.cut_power_after(steps)
        self.append(seed, [[700, 100], [100]], waits=False)
        self.acknowledge("a", 1, waits=False)

        async def until_power_goes() -> None:
            if checkpoints:
                await self.store._checkpointer.run()
            while not self.has_failed.is_set():
                try:
                    await self.store.flush()
                except StoreError:
                    return
                await asyncio.sleep(0)

        async def attempt() -> None:
            going = asyncio.ensure_future(until_power_goes())
            lost = asyncio.ensure_future(self.has_failed.wait())
            await asyncio.wait({going, lost}, return_when=asyncio.FIRST_COMPLETED)
            going.cancel()
            lost.cancel()
            await asyncio.wait({going, lost})

        self.run(attempt())
        self.crash(Random(seed), is_power_loss=True)

    def crash(self, random: Random, *, is_power_loss: bool) -> None:
        assert not self.fatal, "the disk was sound until now"
        survivor = self.disk.after_power_loss(random) if is_power_loss else self.disk.after_kill()
        # From the crash on nobody hears of a completion.
        listeners, cursors = self.ledgers, self.cursors
        expected = {ledger_id: ledger.completed_count for ledger_id, ledger in listeners.items()}
        receipts = {name: cursor.completed_count for name, cursor in cursors.items()}
        self.run(self.store.close())
        for ledger_id, count in expected.items():
            listeners[ledger_id].completed_count = count
        for name, count in receipts.items():
            cursors[name].completed_count = count
        self.disk = survivor
        self.start()
        self.check_everything()

    def check_everything(self) -> None:
        assert self.run(self.store.list_ledgers()) == sorted(self.ledgers), "ledgers came back or are lost"
        for ledger_id, ledger in self.ledgers.items():
            found = self.run(read_all(self.store, ledger_id))
            assert len(found) >= ledger.completed_count, "a completed entry is lost"
            assert found == ledger.appended[: len(found)]
            ledger.appended = found
            ledger.completed_count = len(found)
            ledger.open_runs = 0
            ledger.is_open = False
        for ledger_id in self.deleted:
            with pytest.raises(NoSuchLedger):
                self.run(self.store.read(ledger_id, 0, 1, 1))
        for name, cursor in self.cursors.items():
            state = self.loaded(name)
            cursor.check(state)
            cursor.state = state
            cursor.ends = [end for end in cursor.ends if end <= len(state)]
            cursor.completed_count = len(cursor.ends)
            self.store.attach(name, cursor)

    def loaded(self, name: str) -> bytes:
        snapshot, deltas = self.run(self.store.load(name))
        return b"".join([snapshot or b"", *deltas])

    @invariant()
    def ledgers_have_no_gaps(self) -> None:
        if hasattr(self, "store"):
            for ledger in self.store._ledgers.values():
                ledger.check_invariants()


def run_machine(examples: int, phases: tuple[Phase, ...] = (Phase.generate,)) -> None:
    run_state_machine_as_test(
        StoreMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=25,
            deadline=None,
            database=None,
            phases=phases,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_the_store_does_what_the_model_does() -> None:
    run_machine(examples=100, phases=(Phase.generate, Phase.shrink))


# Planted bugs: each must be noticed


def completes_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    write_at = fault_disk.FaultFile.write_at
    patch.setattr(
        fault_disk.FaultFile,
        "write_at",
        lambda self, pieces, offset, durable: write_at(self, pieces, offset, durable=False),
    )


def does_not_check_the_journal(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(journal_layout, "crc32c", lambda data, start=0, keep_lock=-1: 0)


def loses_a_delta(patch: pytest.MonkeyPatch) -> None:
    change = checkpointer.Checkpointer._cursor_change

    def without_the_last(self: Any, cursor: Any) -> Any:
        found = change(self, cursor)
        found.deltas = found.deltas[:-1]
        return found

    patch.setattr(checkpointer.Checkpointer, "_cursor_change", without_the_last)


def applies_deltas_twice(patch: pytest.MonkeyPatch) -> None:
    def merge_all(stored: Any, shelved: Any) -> Any:
        snapshot, _ = merge(stored, shelved)
        _, deltas = merge((None, stored[1]), (shelved[0], None, shelved[2]))
        return snapshot, deltas

    merge = cursor_registry.merge
    patch.setattr(local_store, "merge", merge_all)


def gives_a_ledger_id_twice(patch: pytest.MonkeyPatch) -> None:
    opened = start_up.open_store

    def forgetful(*args: Any, **kwargs: Any) -> Any:
        result = opened(*args, **kwargs)
        result.reserved_ledger_ids = range(1, 1000)
        return result

    patch.setattr(local_store, "open_store", forgetful)


def frees_the_journal_one_batch_too_early(patch: pytest.MonkeyPatch) -> None:
    end = JournalBatcher._end

    def moves_the_mark(self: Any, noted: Any) -> Any:
        ended = end(self, noted)
        if ended.batch.mark is not None:
            ended.batch.mark.sequence += 1
        return ended

    patch.setattr(JournalBatcher, "_end", moves_the_mark)


def commits_before_the_segments_are_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checkpoint, "MAX_SINGLE_SYNCS", -1)
    patch.setattr(fault_disk.FaultDisk, "open_file_system", lambda self, directory: NoSync())


class NoSync:
    def sync(self) -> None:
        pass

    def close(self) -> None:
        pass


def does_not_sync_the_table(patch: pytest.MonkeyPatch) -> None:
    sync = fault_disk.FaultFile.sync

    def sync_others(self: Any) -> None:
        if not self._path.name.endswith(".db-wal"):
            sync(self)

    patch.setattr(fault_disk.FaultFile, "sync", sync_others)


def forgets_the_directory(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fault_disk.FaultDisk, "sync_directory", lambda self, directory: None)


def forgets_deletions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checkpointer.Checkpointer, "deleted", lambda self, ledger_id: self._dirty.pop(ledger_id, None))
    change = start_up.Replay._change_ledger  # type: ignore[attr-defined]

    def only_made(self: Any, record: Any) -> None:
        if record.type is journal_layout.RecordType.LEDGER_CREATED:
            change(self, record)

    patch.setattr(start_up.Replay, "_change_ledger", only_made)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "plant",
    [
        completes_before_the_sync,
        does_not_check_the_journal,
        loses_a_delta,
        applies_deltas_twice,
        gives_a_ledger_id_twice,
        frees_the_journal_one_batch_too_early,
        commits_before_the_segments_are_synced,
        does_not_sync_the_table,
        forgets_the_directory,
        forgets_deletions,
    ],
    ids=lambda plant: plant.__name__,
)
def test_the_model_notices_a_store_that(plant: Plant) -> None:
    with found_by_walk(plant, StoreError, ExceptionGroup, Flaky):
        run_machine(examples=500)
