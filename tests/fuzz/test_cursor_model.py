"""A cursor's state against a plain set of deleted entries, through acknowledgements in any order, trims and restarts.

What must hold at every step: what is deleted is what the model says, the backlog is exact, the mark-delete position stands
before the first entry that is not deleted, and a restart gives back exactly the state at the last delta that was stored.

Two drivers take the same steps: hypothesis, which shrinks what it finds, and a random walk, which is much faster. The quick
runs are the same every time. The long ones take FUZZ_EXAMPLES and FUZZ_SEED (or `--hypothesis-seed`).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from pyroaring import BitMap
from tests.fuzz.ledger_list_bugs import entries_behind_a_gap_are_counted_as_if_it_were_none
from tests.support.planting import Plant, found_by_walk

from pybroker.managed_ledger import cursor_record, cursor_state
from pybroker.managed_ledger.cursor_state import CursorState
from pybroker.managed_ledger.ledger_list import LedgerList
from pybroker.managed_ledger.retention import KEEP_ALL, removable
from pybroker.model import ack_set
from pybroker.model.position import LATEST, Position

FUZZ_EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "600"))
FUZZ_SEED = int(os.environ.get("FUZZ_SEED", "1"))
QUICK = settings(max_examples=30, stateful_step_count=30, deadline=None, derandomize=True, database=None)
LONG = settings(max_examples=FUZZ_EXAMPLES, stateful_step_count=80, deadline=None, database=None)

BATCH = 3  # messages in every entry
FIRST_LEDGER = 3
BEFORE_ALL = Position(FIRST_LEDGER, -1)


@dataclass
class Model:
    """What is acknowledged, one entry at a time."""

    mark: Position = BEFORE_ALL
    deleted: set[Position] = field(default_factory=set)  # behind the mark
    bits: dict[Position, int] = field(default_factory=dict)

    def copy(self) -> Model:
        return replace(self, deleted=set(self.deleted), bits=dict(self.bits))

    def is_deleted(self, position: Position) -> bool:
        return position <= self.mark or position in self.deleted

    def settle(self, entries: list[Position]) -> None:
        """Move the mark over what is deleted, and forget what does not exist or does not matter any more."""
        for position in entries:
            if position > self.mark:
                if position not in self.deleted:
                    break
                self.mark = position
        self.deleted = {position for position in self.deleted & set(entries) if position > self.mark}
        self.bits = {p: bits for p, bits in self.bits.items() if p in entries and not self.is_deleted(p)}


class CursorMachine(RuleBasedStateMachine):
    """The cursor, the ledgers below it, the records that are stored, and the model of each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.ledgers = LedgerList()
        self.ledgers.add_ledger(FIRST_LEDGER)
        self.cursor = CursorState(self.ledgers, BEFORE_ALL)
        self.model = Model()
        self.snapshot: bytes | None = None
        self.deltas: list[bytes] = []
        self.states = [Model()]  # after the snapshot, and after each delta

    def entries(self) -> list[Position]:
        return [
            Position(ledger.ledger_id, entry)
            for ledger in self.ledgers.summaries()
            for entry in range(ledger.entry_count)
        ]

    def choose(self, index: int) -> Position:
        """Some entry, or one that never existed."""
        entries = self.entries()
        return (
            entries[index % len(entries)] if entries and index % 17 else Position(FIRST_LEDGER + index % 5, index % 40)
        )

    # --- the ledgers -------------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 12))
    def append(self, count: int) -> None:
        self.ledgers.added(self.ledgers.ledger_ids()[-1], count, count * BATCH, count)

    @rule(step=st.integers(1, 2))
    def roll(self, step: int) -> None:
        last = self.ledgers.summaries()[-1]
        self.ledgers.close_ledger(last, 0)
        self.ledgers.add_ledger(last.ledger_id + step)

    @rule()
    def drop_empty_ledgers(self) -> None:
        """Wherever they are: no position notices."""
        self.ledgers.remove(removable(self.ledgers, self.ledgers.ledger_ids()[-1], (), KEEP_ALL, 0))

    @precondition(lambda self: len(self.ledgers) > 2)
    @rule(index=st.integers(0, 10))
    def trim(self, index: int) -> None:
        """Any ledger but those at the end goes, acknowledged or not."""
        ids = self.ledgers.ledger_ids()
        gone = ids[index % (len(ids) - 1)]
        if gone < self.ledgers.last_position.ledger_id:
            self.ledgers.remove([gone])
            self.cursor.forget_ledgers([gone])
            self.model.settle(self.entries())

    # --- acknowledging -----------------------------------------------------------------------------------------------

    @rule(index=st.integers(0, 300), count=st.integers(1, 5), step=st.integers(1, 3), order=st.integers(0, 2))
    def acknowledge(self, index: int, count: int, step: int, order: int) -> None:
        """Entries of one ledger: rising, falling, or with one of them twice."""
        ledger_id, first = self.choose(index)
        entry_ids = list(range(first, first + count * step, step))
        if order == 1:
            entry_ids.reverse()
        elif order == 2:
            entry_ids.insert(0, entry_ids[0])  # 3, 3, 5: a run by its ends and length
        existing = set(self.entries())
        wanted = {Position(ledger_id, entry_id) for entry_id in entry_ids} & existing
        newly = {position for position in wanted if not self.model.is_deleted(position)}
        assert self.cursor.acknowledge(ledger_id, entry_ids) == len(newly)
        self.model.deleted |= newly
        self.model.settle(self.entries())

    @rule(count=st.integers(1, 6))
    def acknowledge_in_order(self, count: int) -> None:
        following = self.ledgers.next_position(self.model.mark)
        run = range(following.entry_id, following.entry_id + count)
        wanted = {Position(following.ledger_id, entry_id) for entry_id in run} & set(self.entries())
        newly = wanted - self.model.deleted
        assert self.cursor.acknowledge(following.ledger_id, run) == len(newly)
        self.model.deleted |= newly
        self.model.settle(self.entries())

    @rule(index=st.integers(0, 300), word=st.integers(-8, 7))
    def acknowledge_batch(self, index: int, word: int) -> None:
        position = self.choose(index)
        left = self.cursor.acknowledge_batch(position, [word], BATCH)
        assert left == self.model_batch(position, word)
        self.model.settle(self.entries())

    def model_batch(self, position: Position, word: int) -> int:
        if position not in self.entries() or self.model.is_deleted(position):
            return 0
        bits = self.model.bits.get(position, ack_set.full(BATCH)) & word
        if bits == ack_set.full(BATCH):
            return BATCH
        self.model.bits[position] = bits
        if not bits:
            self.model.deleted.add(position)
        return bits.bit_count()

    @rule(index=st.integers(0, 300))
    def acknowledge_up_to(self, index: int) -> None:
        self.up_to(self.choose(index))

    def up_to(self, position: Position) -> None:
        entries = self.entries()
        before = sum(not self.model.is_deleted(entry) for entry in entries)
        newly = self.cursor.mark_delete_to(position)
        if entries and position <= entries[-1]:
            below = [entry for entry in entries if entry <= position]
            if below and below[-1] > self.model.mark:
                self.model.mark = below[-1]
        self.model.settle(entries)
        assert newly == before - sum(not self.model.is_deleted(entry) for entry in entries)

    @rule(index=st.integers(0, 300), word=st.integers(-8, 7))
    def acknowledge_up_to_within_a_batch(self, index: int, word: int) -> None:
        position = self.choose(index)
        entries = self.entries()
        before = sum(not self.model.is_deleted(entry) for entry in entries)
        newly = self.cursor.mark_delete_to_batch(position, [word], BATCH)
        if position in entries:
            below = [entry for entry in entries if entry < position]
            if below:
                self.model.mark = max(self.model.mark, below[-1])
            self.model.settle(entries)
            self.model_batch(position, word)
            self.model.settle(entries)
        assert newly == before - sum(not self.model.is_deleted(entry) for entry in entries)

    @rule(count=st.integers(1, 20))
    def skip(self, count: int) -> None:
        left = [entry for entry in self.entries() if not self.model.is_deleted(entry)]
        target = self.cursor.nth_undeleted(count)
        assert target == (left[count - 1] if count <= len(left) else self.ledgers.last_position)
        self.up_to(target)

    @rule(index=st.integers(0, 300))
    def reset(self, index: int) -> None:
        position = LATEST if index % 10 == 0 else self.choose(index)
        mark = self.ledgers.previous_position(position)
        self.cursor.reset(mark)
        self.model = Model(mark)

    # --- storing -----------------------------------------------------------------------------------------------------

    @rule()
    def store_delta(self) -> None:
        delta = self.cursor.take_delta()
        if delta is not None:
            self.deltas.append(delta)
            self.states.append(self.model.copy())
        else:
            stored = self.states[-1].copy()
            stored.settle(self.entries())
            assert stored == self.model, "something changed, and there is no delta of it"
        assert self.cursor.take_delta() is None

    @rule()
    def lose_delta(self) -> None:
        self.cursor.take_delta()
        self.cursor.forget_deltas()

    @rule()
    def store_snapshot(self) -> None:
        self.snapshot = self.cursor.snapshot()
        self.deltas = []
        self.states = [self.model.copy()]

    @rule(lost=st.sampled_from([0, 0, 0, 1, 2, 5]))
    def crash(self, lost: int) -> None:
        """Everything in memory is gone, and the last deltas may be too."""
        kept = max(0, len(self.deltas) - lost)
        del self.deltas[kept:]
        del self.states[kept + 1 :]
        self.cursor = CursorState.restore(self.ledgers, BEFORE_ALL, self.snapshot, self.deltas)
        self.model = self.states[-1].copy()
        self.model.settle(self.entries())
        assert self.cursor.take_delta() is None
        self.states[-1] = self.model.copy()

    # --- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def the_cursor_agrees_with_itself_and_with_the_model(self) -> None:
        cursor, model, entries = self.cursor, self.model, self.entries()
        cursor.check_invariants()
        assert cursor.mark_delete_position == model.mark
        left = [position for position in entries if not model.is_deleted(position)]
        assert [position for position in entries if not cursor.is_deleted(*position)] == left
        assert cursor.backlog_entries == len(left)
        assert cursor.first_undeleted(BEFORE_ALL) == (left[0] if left else self.ledgers.end_position)
        for part in cursor.acknowledged_behind():
            here = [position for position in model.deleted if position.ledger_id == part.ledger_id]
            bits = [(e, bits) for (lid, e), bits in model.bits.items() if lid == part.ledger_id]
            assert sorted(part.deleted) == sorted(entry_id for _, entry_id in here)
            assert sorted(part.partial) == sorted(entry_id for entry_id, _ in bits)
            assert part.remaining_messages == sum(value.bit_count() for _, value in bits)
        assert cursor.deleted_range_count == sum(
            Position(ledger_id, entry_id - 1) not in model.deleted for ledger_id, entry_id in model.deleted
        )
        for ledger in self.ledgers.summaries():
            ledger_id, count = ledger.ledger_id, ledger.entry_count
            kept = cursor.undeleted_in(ledger_id, 0, count)
            assert (list(range(count)) if kept is None else kept) == [e for lid, e in left if lid == ledger_id]
            sets = cursor.ack_sets_in(ledger_id, 0, count) or [None] * count
            bits = [model.bits.get(Position(ledger_id, entry_id)) for entry_id in range(count)]  # type: ignore[misc]
            assert sets == [None if value is None else ack_set.to_words(value) for value in bits]  # type: ignore[arg-type]


# The steps of the walk: how often each is drawn, and how it is taken.
Step = tuple[int, Callable[[CursorMachine, random.Random], None]]
STEPS: list[Step] = [
    (3, lambda m, r: m.append(r.randint(1, 12))),
    (2, lambda m, r: m.roll(r.randint(1, 2))),
    (1, lambda m, r: m.trim(r.choice((0, r.randrange(10)))) if len(m.ledgers) > 2 else None),
    (1, lambda m, r: m.drop_empty_ledgers()),
    (1, lambda m, r: m.skip(r.randint(1, 8))),
    (8, lambda m, r: m.acknowledge(r.randrange(300), r.randint(1, 5), r.randint(1, 3), r.randrange(3))),
    (4, lambda m, r: m.acknowledge_in_order(r.randint(1, 6))),
    (6, lambda m, r: m.acknowledge_batch(r.randrange(300), r.randint(-8, 7))),
    (1, lambda m, r: m.acknowledge_up_to(min(r.randrange(300), r.randrange(30)))),
    (1, lambda m, r: m.acknowledge_up_to_within_a_batch(min(r.randrange(300), r.randrange(30)), r.randint(-8, 7))),
    (1, lambda m, r: m.reset(r.randrange(300)) if r.random() < 0.4 else None),
    (5, lambda m, r: m.store_delta()),
    (1, lambda m, r: m.lose_delta()),
    (1, lambda m, r: m.store_snapshot()),
    (2, lambda m, r: m.crash(r.choice((0, 0, 0, 1, 2, 5)))),
]


def walk_many(first_seed: int, count: int, step_count: int) -> None:
    weights = [weight for weight, _ in STEPS]
    for seed in range(first_seed, first_seed + count):
        chance = random.Random(seed)
        machine = CursorMachine()
        try:
            for _, take in chance.choices(STEPS, weights, k=step_count):
                take(machine, chance)
                machine.the_cursor_agrees_with_itself_and_with_the_model()
        except Exception as error:
            error.add_note(f"found by walk_many({seed}, 1, {step_count})")
            raise


def test_a_cursor_does_what_the_model_says() -> None:
    run_state_machine_as_test(CursorMachine, settings=QUICK)


def test_a_cursor_does_what_the_model_says_on_random_walks() -> None:
    walk_many(FUZZ_SEED, 60, 60)


@pytest.mark.long
def test_a_cursor_does_what_the_model_says_for_long() -> None:
    run_state_machine_as_test(CursorMachine, settings=LONG)


@pytest.mark.long
def test_a_cursor_does_what_the_model_says_on_many_random_walks() -> None:
    walk_many(FUZZ_SEED, 2 * FUZZ_EXAMPLES, 80)


# --- the model finds bugs ----------------------------------------------------------------------------------------------


def runs_are_judged_by_their_ends(patch: pytest.MonkeyPatch) -> None:
    def existing(self: CursorState, ledger_id: int, entry_ids: list[int]) -> BitMap:
        bitmap = original(self, ledger_id, entry_ids)
        ends = entry_ids[-1] - entry_ids[0] + 1 == len(entry_ids)
        return BitMap(range(bitmap.min(), bitmap.max() + 1)) if bitmap and ends else bitmap

    original = CursorState._existing
    patch.setattr(CursorState, "_existing", existing)


def the_mark_stays_in_its_ledger(patch: pytest.MonkeyPatch) -> None:
    def advance(self: CursorState) -> None:
        before = self.mark_ledger_id
        following = self._ledgers.next_position(self.mark_delete_position)
        if following.ledger_id == before:
            original(self)

    original = CursorState._advance
    patch.setattr(CursorState, "_advance", advance)


def swallowed_holes_stay_counted(patch: pytest.MonkeyPatch) -> None:
    original = cursor_state._drop_bitmaps
    patch.setattr(cursor_state, "_drop_bitmaps", lambda bitmaps, position: original(bitmaps, position) and 0)


def the_mark_goes_back(patch: pytest.MonkeyPatch) -> None:
    def mark_delete_to(self: CursorState, position: Position) -> int:
        before = self.backlog_entries
        self._move_mark(self._ledgers.floor(position))
        self._advance()
        return before - self.backlog_entries

    patch.setattr(CursorState, "mark_delete_to", mark_delete_to)


def single_holes_are_not_stored(patch: pytest.MonkeyPatch) -> None:
    original = cursor_state._add

    def add(bitmaps: dict[int, BitMap], ledger_id: int, entry_id: int) -> None:
        original(bitmaps, ledger_id, entry_id)
        if len(bitmaps[ledger_id]) > 1:
            bitmaps[ledger_id].discard(bitmaps[ledger_id].max())

    def delete_one(self: CursorState, ledger_id: int, entry_id: int) -> int:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(cursor_state, "_add", lambda m, lid, e: (original if m is self.holes else add)(m, lid, e))
            return whole(self, ledger_id, entry_id)

    whole = CursorState._delete_one
    patch.setattr(CursorState, "_delete_one", delete_one)


def ack_sets_are_not_stored(patch: pytest.MonkeyPatch) -> None:
    original = cursor_record._encode
    patch.setattr(cursor_record, "_encode", lambda kind, mark, holes, sets, held: original(kind, mark, holes, {}, held))


def a_lost_delta_is_not_made_up_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CursorState, "forget_deltas", lambda self: None)


def the_ends_of_runs_are_missed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        cursor_state, "end_of_run", lambda holes, entry_id: entry_id + 1 if entry_id + 1 in holes else entry_id
    )
    patch.setattr(CursorState, "_advance", _advance_once)


def _advance_once(self: CursorState) -> None:
    following = self._ledgers.next_position(self.mark_delete_position)
    holes = self.holes.get(following.ledger_id)
    if holes is not None and following.entry_id in holes:
        self._move_mark(Position(following.ledger_id, cursor_state.end_of_run(holes, following.entry_id)))  # type: ignore[attr-defined]


def batches_keep_their_bits_when_deleted_whole(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cursor_state, "_drop_ack_sets", lambda sets, entries: None)


def holes_of_trimmed_ledgers_stay_counted(patch: pytest.MonkeyPatch) -> None:
    def forget_ledgers(self: CursorState, ledger_ids: list[int]) -> None:
        before = self._hole_count
        original(self, ledger_ids)
        self._hole_count = before

    original = CursorState.forget_ledgers
    patch.setattr(CursorState, "forget_ledgers", forget_ledgers)


def the_mark_stays_in_front_of_a_gap(patch: pytest.MonkeyPatch) -> None:
    def forget_ledgers(self: CursorState, ledger_ids: list[int]) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(CursorState, "_advance", lambda self: None)
            original(self, ledger_ids)

    original = CursorState.forget_ledgers
    patch.setattr(CursorState, "forget_ledgers", forget_ledgers)


BUGS = [
    runs_are_judged_by_their_ends,
    the_mark_stays_in_its_ledger,
    swallowed_holes_stay_counted,
    the_mark_goes_back,
    single_holes_are_not_stored,
    ack_sets_are_not_stored,
    a_lost_delta_is_not_made_up_for,
    the_ends_of_runs_are_missed,
    batches_keep_their_bits_when_deleted_whole,
    holes_of_trimmed_ledgers_stay_counted,
    the_mark_stays_in_front_of_a_gap,
    entries_behind_a_gap_are_counted_as_if_it_were_none,
]


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_the_walks_find_a_planted_bug(plant: Plant) -> None:
    with found_by_walk(plant):
        walk_many(1, 500, 60)
