"""The index of delayed entries beside a simple model of it: a dictionary of positions and their times.

Invariants checked at every step: what waits is what the model says; what is taken is due, in the order of times, never twice,
and none is left that is due; the next alarm is never too late; what is stored and read back waits again.
"""

from __future__ import annotations

import random

from pyroaring import BitMap

from pybroker.dispatch.delayed import delayed_entries
from pybroker.dispatch.delayed.changed_delays import ChangedDelays
from pybroker.dispatch.delayed.delayed_entries import Delayed, DelayedIndex
from pybroker.dispatch.delayed.delayed_record import encode_more, encode_whole, stored_changes, stored_runs
from pybroker.model.position import Position

LEDGERS = (3, 4, 9)
ENTRIES = 60
SPARSE = 5_000_000
"""How far entries are apart in one of the ledgers: more than one run spans."""


class DelayedModel:
    """One index and what it should hold; `step` does something random to both."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.changed = ChangedDelays()  # by somebody, until they are acknowledged
        self.index = DelayedIndex(self.changed)
        self.waiting: dict[Position, int] = {}
        self.due_times: dict[Position, int] = {}  # of every entry there ever was: they do not change by themselves
        self.records: list[bytes] = []
        self.stored_serial = 0
        self.now_ms = 0

    def step(self) -> None:
        """One thing that can happen, and everything that must hold afterwards."""
        steps = (
            self.add,
            self.add,
            self.add,
            self.take,
            self.take,
            self.discard,
            self.discard_up_to,
            self.store,
            self.move,
        )
        rare = (self.restart, self.seal)
        self.random.choice(rare if self.random.random() < 0.05 else steps)()
        self.index.check_invariants()
        held = {Position(ledger, entry) for ledger, entries in self.index.members.items() for entry in entries}
        assert held == set(self.waiting), "what waits is not what should"
        assert len(self.index) == len(self.waiting)
        next_due_ms = self.index.next_due_ms()
        assert (next_due_ms is None) == (not self.waiting)
        assert next_due_ms is None or next_due_ms == min(self.waiting.values()), (
            "the alarm would be late, or for nothing"
        )
        due = sum(due_ms <= self.now_ms for due_ms in self.waiting.values())
        assert due <= self.index.due_count(self.now_ms) <= len(self.waiting), "due and not counted"

    def _position(self) -> Position:
        ledger_id = self.random.choice(LEDGERS)
        entry_id = self.random.randrange(ENTRIES)
        return Position(ledger_id, entry_id * SPARSE if ledger_id == LEDGERS[-1] else entry_id)

    def add(self) -> None:
        positions = sorted({self._position() for _ in range(self.random.randrange(1, 8))})
        for ledger_id in LEDGERS:
            part = [each for each in positions if each.ledger_id == ledger_id]
            for each in part:
                self.due_times.setdefault(each, self.now_ms + self.random.randrange(200))
            due_times_ms = [self.due_times[each] for each in part]
            has_runs = self.index.add(ledger_id, [each.entry_id for each in part], due_times_ms)
            if has_runs and self.records:
                self.store()
            self.waiting.update({each: self.due_times[each] for each in part})

    def take(self) -> None:
        self.now_ms += self.random.randrange(60)
        limit = self.random.randrange(1, 12)
        taken = self.index.take_due(self.now_ms, limit)
        for each in taken:
            assert self.waiting.pop(each.position, None) == each.due_ms, "what nobody waits for, or of another time"
        times = [each.due_ms for each in taken]
        assert times == sorted(times), "not in the order of due times"
        assert not times or times[-1] <= self.now_ms, "too early"
        left = min(self.waiting.values(), default=self.now_ms + 1)
        assert len(taken) == limit or left > self.now_ms, "due and not taken"
        assert not times or len(taken) < limit or left >= times[-1], "a later one went first"
        if taken and self.random.random() < 0.2:
            self.give_back(taken)

    def give_back(self, taken: list[Delayed]) -> None:
        for each in taken:
            if self.random.random() < 0.2:
                self.change(each.position)
            has_runs = self.index.add(each.ledger_id, [each.entry_id], [each.due_ms])
            self.waiting[each.position] = self.due_times[each.position]
            if has_runs and self.records:
                self.store()

    def discard(self) -> None:
        position = self._position()
        entry_ids = [position.entry_id, -1, 1 << 40]
        self.changed.discard(position.ledger_id, entry_ids)
        self.index.discard(position.ledger_id, entry_ids)
        self.waiting.pop(position, None)

    def discard_up_to(self) -> None:
        if self.random.random() < 0.3:
            position = self._position()
            self.changed.discard_up_to(position)
            self.index.discard_up_to(position)
            self.waiting = {each: due_ms for each, due_ms in self.waiting.items() if each > position}

    def move(self) -> None:
        self.change(self.random.choice(sorted(self.waiting)) if self.waiting else self._position())

    def change(self, position: Position) -> None:
        due_ms = self.random.choice((0, self.now_ms + self.random.randrange(300)))
        if not self.records:
            self.store()
        self.changed.set(position, due_ms)
        assert self.index.move(position) == (position in self.waiting), "moved and nobody waits, or not moved"
        self.due_times[position] = due_ms
        if position in self.waiting:
            self.waiting[position] = due_ms
        self.records.append(encode_more((), [(position, due_ms)]))

    def seal(self) -> None:
        self.index.seal_newest()
        if self.records:
            self.store()

    def store(self) -> None:
        if not self.records or self.random.random() < 0.3:
            self.index.seal_newest()
            self.records.append(encode_whole(self.index.runs_after(0), self.changed))
        else:
            self.records.append(encode_more(self.index.runs_after(self.stored_serial)))
        self.stored_serial = self.index.last_serial

    def restart(self) -> None:
        """What is not waiting is acknowledged; what was not stored is found by reading the topic."""
        self.changed = ChangedDelays()
        restored = DelayedIndex(self.changed)
        for run in stored_runs(self.records):
            gone = [each for each in self.due_times if each.ledger_id == run.ledger_id and each not in self.waiting]
            restored.add_run(run, BitMap([each.entry_id for each in gone]))
        for position, due_ms in stored_changes(self.records).items():
            self.changed.set(position, due_ms)
            restored.move(position)
        missing = len(self.waiting) - len(restored)
        assert missing < delayed_entries.RUN_ENTRIES or not self.records, (
            "more than the newest entries must be read again"
        )
        self.index = restored
        self.stored_serial = restored.last_serial
        for (ledger_id, entry_id), due_ms in self.waiting.items():
            if restored.add(ledger_id, [entry_id], [due_ms]) and self.records:
                self.store()


def walk(seed: int, steps: int) -> None:
    """A random walk of the model; raises when something does not hold."""
    model = DelayedModel(seed)
    for number in range(steps):
        try:
            model.step()
        except AssertionError as failure:
            raise AssertionError(f"seed {seed}, step {number}: {failure}") from failure
