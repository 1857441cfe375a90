"""The real managed ledgers on the local store, beside the model: lives and crashes, and what must hold.

What must hold after every step: counters and cursors are those of the model. After every crash: everything that was
receipted is there, at its position and unchanged; of what was under way whole runs, in order, or nothing; a cursor is as it
was at some moment since the last one that was promised; nothing comes back that was deleted.

The steps are in `managed_ledger_steps.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import TypeVar

import pytest
from tests.fuzz.managed_ledger_life import Crashed, Life
from tests.fuzz.managed_ledger_model import AckState, ModelCursor, ModelEntry, ModelRun, ModelTopic
from tests.support.fault_disk import FaultDisk
from tests.support.world import SyncWorld

from pybroker.errors import StoreError
from pybroker.ledgers.ledger_store import AppendRun
from pybroker.local_store.store_options import LocalStoreOptions
from pybroker.managed_ledger.ledger_listener import ManagedLedgerListener
from pybroker.managed_ledger.managed_cursor import ManagedCursor
from pybroker.managed_ledger.managed_ledger import ManagedLedger
from pybroker.managed_ledger.orphaned_ledgers import find_orphaned_ledgers
from pybroker.managed_ledger.rollover import LedgerLimits
from pybroker.metadata.metadata_store import Versioned
from pybroker.model import ack_set
from pybroker.model.position import Position

_T = TypeVar("_T")

TOPIC_NAMES = ("a", "b", "c")
LIMITS = LedgerLimits(max_entries_per_ledger=9, max_bytes_per_ledger=60_000, min_rollover_ms=0)
OPTIONS = (
    LocalStoreOptions(
        journal_file_bytes=32 << 10,
        max_batch_bytes=4 << 10,
        checkpoint_max_bytes=1 << 40,
        checkpoint_retry_s=0.01,
        snapshot_turn_ms=-1,
    ),
    LocalStoreOptions(
        journal_file_bytes=16 << 10,
        max_batch_bytes=1,  # every run is a batch of its own
        checkpoint_max_entries=12,
        journal_max_records=20,
        checkpoint_retry_s=0.01,
        snapshot_turn_ms=-1,
    ),
    LocalStoreOptions(
        sync_data=False,  # a power loss may take receipted entries, and is not tried
        journal_file_bytes=32 << 10,
        max_batch_bytes=4 << 10,
        checkpoint_max_entries=60,
        checkpoint_retry_s=0.01,
        snapshot_turn_ms=-1,
    ),
)


class LiveTopic(ManagedLedgerListener):
    """A managed ledger that is open, and its model."""

    def __init__(self, life: Life, managed: ManagedLedger, model: ModelTopic) -> None:
        self.managed = managed
        self.model = model
        self._life = life
        managed.listen(self)

    def entries_added(self, runs: list[AppendRun]) -> None:
        self._hear(runs, self._added)

    def split_context(self, context: object, entry_count: int) -> tuple[object, object]:
        assert isinstance(context, ModelRun)
        assert entry_count == context.stored_count, "a run is divided at the wrong entry"
        return self.model.divide(context, entry_count)

    def fenced(self, error: StoreError) -> None:
        raise AssertionError("nobody else writes here") from error

    def append_failed(self, runs: list[AppendRun], error: StoreError) -> None:
        self._hear(runs, self._failed)

    def _hear(self, runs: list[AppendRun], hear: Callable[[ModelRun, AppendRun], None]) -> None:
        if self._life.is_over:
            return
        try:
            for run in runs:
                assert isinstance(run.context, ModelRun)
                hear(run.context, run)
        except AssertionError as error:  # the store must not lose it for us
            self._life.broken.append(error)

    def _added(self, appended: ModelRun, run: AppendRun) -> None:
        assert run.payloads == appended.payloads
        self.model.confirm(appended, run.ledger_id, run.first_entry_id)

    def _failed(self, appended: ModelRun, run: AppendRun) -> None:
        is_ending = self.managed.is_closed or self.model.may_be_terminated  # runs that wait for the next ledger
        assert is_ending or self._life.faults.has_refused, "a run is refused for no reason"
        self.model.refuse(appended)


@dataclass
class Next:
    """What happens to the machine after the present crash."""

    is_power_loss: bool = False
    crash_again_after: int | None = None


class ManagedLedgerWorld(SyncWorld):
    """Managed ledgers on the local store, their model, and the life that a crash ends. `close` or `discard` must be called."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.options = OPTIONS[seed % len(OPTIONS)]
        self.patch = pytest.MonkeyPatch()
        self.topics: dict[str, ModelTopic] = {}
        self.values: dict[str, Versioned] = {}
        self.owners: dict[int, ModelTopic] = {}  # of every ledger id ever seen
        self.dead_cursors: set[str] = set()  # ids of those that were deleted for good
        self.orphans: set[int] = set()
        self.counter = 0
        self.next = Next()
        self.life = Life(self.chance, 1000.0, FaultDisk(), self.values, self.patch)
        self.open: dict[str, LiveTopic] = {}
        self.background: set[asyncio.Task[bool]] = set()
        self.begin()

    # --- the frame of a step -----------------------------------------------------------------------------------------

    def perform(self, name: str, arguments: dict[str, int]) -> None:
        try:
            getattr(self, name)(**arguments)
        except Crashed:
            self.recover()

    def finish(self) -> None:
        """Everything can be read once nothing is in progress, and once more after a power loss."""
        for name, arguments in (("look", {}), ("crash", {"is_power_loss": 1, "again": 0}), ("look", {})):
            self.take(name, arguments)

    def discard(self) -> None:
        self.life.bury()
        self.patch.undo()

    def begin(self) -> None:
        self.life.start(self.options, LIMITS)

    def recover(self) -> None:
        """Start again on what the last life left, until a start is not cut off itself."""
        while True:
            old = self.life
            now_s = old.loop.time() + 1
            self.raise_broken()
            survivor = old.disk.after_power_loss(self.chance) if self.next.is_power_loss else old.disk.after_kill()
            old.bury()
            self.open = {}
            self.background = set()
            self.life = Life(self.chance, now_s, survivor, self.values, self.patch)
            self.life.faults.crash_after = self.next.crash_again_after
            self.next = Next(self.next.is_power_loss)
            for topic in self.topics.values():
                topic.cursors = {name: cursor for name, cursor in topic.cursors.items() if cursor.is_durable}
            try:
                self.begin()
                self.check_names()
                self.check_what_came_back()
            except Crashed:
                continue
            self.life.faults.crash_after = None
            self.next = Next()
            return

    def raise_broken(self) -> None:
        for error in self.life.broken:
            raise AssertionError(f"went wrong unseen: {error!r}") from (
                error if isinstance(error, BaseException) else None
            )

    def read_all(self, managed: ManagedLedger) -> list[ModelEntry]:
        """Everything there is, from wherever it is."""

        async def read() -> list[ModelEntry]:
            found = []
            ledgers = managed.ledgers
            position = ledgers.first_position
            while ledgers.has_entry(position):
                run = await managed.read(position, 100, 10_000)
                run_read = ModelRun(run.payloads, run.message_counts, 0)
                found += run_read.entries(run.ledger_id, run.first_entry_id)
                position = ledgers.normalize(Position(run.ledger_id, run.first_entry_id + len(run.payloads)))
            return found

        return self.life.run(read())

    # --- letting things happen ---------------------------------------------------------------------------------------

    def changing(self, live: LiveTopic, change: Callable[[], None], work: Callable[[], Awaitable[_T]]) -> _T:
        """Do `change` to the model in the very turn in which `work` begins. Raises Crashed and StoreError."""

        async def both() -> _T:
            self.note_trimmed(live)
            change()
            return await work()

        return self.life.run(both())

    def pass_time(self, seconds: float) -> None:
        self.life.run(asyncio.sleep(seconds))

    def calm_down(self) -> None:
        """Nothing is under way any more; while the disk is full, a checkpoint may be."""
        self.life.loop.slowness = 1
        self.life.until(lambda: not any(live.model.pending for live in self.open.values()))
        if not self.life.faults.is_full:
            self.life.until(lambda: not self.background and not len(self.life.factory.tasks))

    # --- opening, and what came back ---------------------------------------------------------------------------------

    def path(self, name: str) -> str:
        return f"/managed-ledgers/t/n/persistent/{name}"

    def open_and_check(self, model: ModelTopic) -> None:
        """Open a topic; what it holds must be what the model says."""
        try:
            managed = self.life.run(self.life.factory.open(self.path(model.name)))
        except StoreError:
            if not (self.life.faults.has_refused or self.life.faults.failed_reads):
                raise
            return
        self.life.faults.read_errors = 0
        known = [ledger for ledger in managed.ledgers.ledger_ids() if self.owners.get(ledger) is model]
        if model.is_going and not known and not managed.cursors:
            # Its deletion had begun and was finished now; this is a new one.
            model = self.topics[model.name] = ModelTopic(model.name)
        model.is_created = True
        model.is_going = False
        live = LiveTopic(self.life, managed, model)
        if model.may_be_terminated:
            assert managed.is_terminated or not model.is_terminated, "a terminated topic goes on"
            model.is_terminated = model.may_be_terminated = managed.is_terminated
        assert managed.is_terminated == model.is_terminated
        found = self.read_all(managed)
        self.note_trimmed(live)
        model.leaving.clear()  # those that are there may stay
        self.check_entries_that_came_back(model, found)
        self.check_cursors_that_came_back(model, managed)
        managed.retention = model.retention
        model.ignores_retention = False
        self.open[model.name] = live

    def check_names(self) -> None:
        """A start is not refused: whatever a crash cut off, only empty ledgers are without a name."""
        store = self.life.store
        stored_ids = self.life.run(store.list_ledgers())
        leftovers = self.life.run(find_orphaned_ledgers(store, self.life.metadata, stored_ids))
        assert not leftovers.entries, "ledgers with entries have lost their names"

    def check_what_came_back(self) -> None:
        for name in TOPIC_NAMES:
            exists = self.life.run(self.life.factory.exists(self.path(name)))
            model = self.topics.get(name)
            if not exists:
                assert model is None or not model.is_created or model.is_going, f"topic {name} is lost"
                self.topics.pop(name, None)
                continue
            assert model is not None, f"topic {name} was deleted and is back"
            self.open_and_check(model)
            assert name in self.open, f"topic {name} cannot be opened"
        for cursor_id in sorted(self.dead_cursors):
            assert self.life.run(self.life.store.load(cursor_id)) == (None, []), f"{cursor_id} is back"
        listed = self.listed_ledgers()
        self.orphans = set(self.life.run(self.life.store.list_ledgers())) - listed

    def check_entries_that_came_back(self, model: ModelTopic, found: list[ModelEntry]) -> None:
        known = [(entry.position, entry.payload, entry.message_count) for entry in model.entries]
        came_back = [(entry.position, entry.payload, entry.message_count) for entry in found]
        assert came_back[: len(known)] == known, "receipted entries are lost, changed or moved"
        rest = found[len(known) :]
        for run in list(model.pending):
            if 0 < run.stored_count < len(run.payloads):
                model.divide(run, run.stored_count)
        while rest:
            assert model.pending, f"{rest[0].position} is there, and nobody published it"
            run = model.pending[0]
            first = rest[0].position
            own, rest = rest[: len(run.payloads)], rest[len(run.payloads) :]
            wanted = run.entries(*first)
            assert [(e.position, e.payload) for e in own] == [(e.position, e.payload) for e in wanted], (
                "runs under way come back whole and in order, or not at all"
            )
            model.confirm(run, *first)
        for run in list(model.pending):
            model.refuse(run)
        assert model.refused.isdisjoint(entry.payload for entry in found), "what was refused is there"

    def check_cursors_that_came_back(self, model: ModelTopic, managed: ManagedLedger) -> None:
        for name, cursor in list(model.maybe.items()):
            if name in managed.cursors and name not in model.cursors:
                model.cursors[name] = cursor
        model.maybe.clear()
        assert set(managed.cursors) == set(model.cursors), "cursors are lost or have come back"
        for name, cursor in model.cursors.items():
            real = managed.cursors[name]
            state = self.state_of(model, real)
            known = [cursor.existing(version) for version in cursor.versions]
            assert state in known, f"cursor {name} is as it never was since the last promise"
            assert real.properties in cursor.properties
            cursor.properties = [real.properties]
            cursor.came_back(state)
            cursor.last_mark = real.mark_delete_position
            cursor.rewind()

    @staticmethod
    def state_of(model: ModelTopic, real: ManagedCursor) -> AckState:
        deleted = frozenset(entry.position for entry in model.entries if real.state.is_deleted(*entry.position))
        bits = {
            entry.position: ack_set.from_words(words)
            for entry in model.entries
            if (words := real.state.ack_set_of(*entry.position)) is not None
        }
        return AckState(deleted, bits)

    # --- what was trimmed --------------------------------------------------------------------------------------------

    def note_trimmed(self, live: LiveTopic) -> None:
        """The model forgets what is gone, if it was allowed to go when it began to leave."""
        model, rows = live.model, live.managed.ledgers.rows()
        there = {row.ledger_id for row in rows}
        leaving = set(live.managed.document.leaving_ledger_ids)
        for ledger_id in model.ledger_ids():
            if ledger_id not in there or ledger_id in leaving - model.leaving:
                if ledger_id not in model.leaving:
                    self.check_may_go(model, ledger_id)
                model.leaving.add(ledger_id)
            if ledger_id not in there:
                model.trim_ledger(ledger_id)
        for row in rows:
            if row.is_sealed and row.ledger_id in model.ledger_ids():
                # A crash may come before the time is stored: then it counts from the recovery.
                assert model.closed_ms.get(row.ledger_id, 0) <= row.closed_ms <= self.life.clock.wall_ms()
                model.closed_ms[row.ledger_id] = row.closed_ms

    def check_may_go(self, model: ModelTopic, ledger_id: int) -> None:
        """Whether a ledger may be trimmed, wherever it stands."""
        name = model.needs(ledger_id)
        assert name is None, f"ledger {ledger_id} goes, and {name} needs it"
        assert model.ignores_retention or not model.retains(ledger_id, self.life.clock.wall_ms()), (
            f"ledger {ledger_id} goes, and retention keeps it"
        )

    def check_nothing_is_left_to_trim(self, live: LiveTopic) -> None:
        """At rest, after a trim: what may go has gone. The newest entry stays with any older one."""
        model = live.model
        are_older_kept = False
        for row in live.managed.ledgers.rows():
            if row.ledger_id == live.managed.current_ledger_id or not row.is_sealed:
                continue
            assert row.entry_count, f"the empty ledger {row.ledger_id} is kept"
            is_newest = row.ledger_id == live.managed.last_confirmed.ledger_id
            if model.needs(row.ledger_id) is not None:
                are_older_kept = True
            elif model.retains(row.ledger_id, self.life.clock.wall_ms()) or (is_newest and are_older_kept):
                return
            else:
                raise AssertionError(f"nobody needs ledger {row.ledger_id}, and it is kept")

    # --- what must hold ----------------------------------------------------------------------------------------------

    def listed_ledgers(self) -> set[int]:
        return {ledger_id for live in self.open.values() for ledger_id in live.managed.ledgers.ledger_ids()}

    def unnamed_ledgers(self) -> set[int]:
        """Ledgers that were created for later."""
        ids = (live.managed._next_ledger_id for live in self.open.values())
        return {ledger_id for ledger_id in ids if ledger_id is not None}

    def check(self) -> None:
        """After every step."""
        self.raise_broken()
        for live in self.open.values():
            self.note_trimmed(live)
            self.check_counters(live)
            self.check_ledger_ids(live)
            for name, cursor in live.model.cursors.items():
                self.check_cursor(live, cursor, live.managed.cursors[name])
        for ledger in self.life.store._ledgers.values():
            ledger.check_invariants()
        self.life.factory.cache.check_invariants()

    @staticmethod
    def check_counters(live: LiveTopic) -> None:
        model, ledgers = live.model, live.managed.ledgers
        assert ledgers.entry_count == len(model.entries), "entries are counted wrongly"
        assert ledgers.message_count == sum(entry.message_count for entry in model.entries), "messages"
        assert ledgers.size_bytes == sum(len(entry.payload) for entry in model.entries), "bytes"
        if model.entries:
            assert live.managed.last_confirmed == model.entries[-1].position
        else:
            assert live.managed.last_confirmed.entry_id == -1

    def check_ledger_ids(self, live: LiveTopic) -> None:
        for ledger_id in live.managed.ledgers.ledger_ids():
            assert self.owners.setdefault(ledger_id, live.model) is live.model, f"ledger id {ledger_id} is given again"

    def check_cursor(self, live: LiveTopic, model: ModelCursor, real: ManagedCursor) -> None:
        real.state.check_invariants()
        assert self.state_of(live.model, real) == model.existing(model.now)
        assert real.properties == model.properties[-1]
        assert real.backlog_entries == len(model.left())
        assert real.mark_delete_position >= model.last_mark, "the mark-delete position went back"
        model.last_mark = real.mark_delete_position

    def check_entries(self, live: LiveTopic) -> None:
        """Read everything. What is on the way meanwhile may be there as well."""
        before = [(entry.position, entry.payload, entry.message_count) for entry in live.model.entries]
        try:
            found = self.read_all(live.managed)
        except StoreError:
            assert self.life.faults.failed_reads, "a read failed for no reason"
            self.life.faults.failed_reads = 0
            return
        assert [(entry.position, entry.payload, entry.message_count) for entry in found][: len(before)] == before

    def check_backlogs(self, live: LiveTopic) -> None:
        """At rest: what the store's indexes say is exact."""
        for name, cursor in live.model.cursors.items():
            real = live.managed.cursors[name]
            left = cursor.left()
            try:
                backlog = self.life.run(real.backlog())
                oldest_ms = self.life.run(real.oldest_publish_time())
            except StoreError:
                assert self.life.faults.failed_reads, "a read failed for no reason"
                self.life.faults.failed_reads = 0
                return
            assert (backlog.entries, backlog.messages, backlog.size_bytes) == cursor.backlog()
            assert oldest_ms == (left[0].published_ms if left else None)

    def check_ledgers_of_store(self) -> None:
        """Those that metadata names exist, and no others but what a crash has left."""
        if self.life.faults.has_refused:
            return
        there = set(self.life.run(self.life.store.list_ledgers()))
        listed = self.listed_ledgers()
        assert listed <= there, f"ledgers {listed - there} are named and do not exist"
        of_closed = {ledger_id for ledger_id, topic in self.owners.items() if topic is self.topics.get(topic.name)}
        strange = there - listed - of_closed - self.orphans - self.unnamed_ledgers()
        assert not strange, f"nobody owns the ledgers {strange}"
