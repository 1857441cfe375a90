"""Sinks beside what their drivers were answered, through crashes between any two turns of the loop; and planted bugs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzz.transactions.coordinator_world import Step
from tests.fuzz.transactions.sink_world import ANYBODY, SinkWorld
from tests.support.planting import Plant, found_by_walk

from pybroker.errors import AuthorizationError, InvalidTxnStatus, TooManyRequests, TransactionNotFound
from pybroker.model.txn_id import TxnAction
from pybroker.transactions.coordinator import Coordinator
from pybroker.transactions.coordinator_state import CoordinatorState, Transaction
from pybroker.transactions.log_positions import LogPositions, PlaceKey
from pybroker.transactions.records import Kind, Record
from pybroker.transactions.sinks import Asking, Label, Mark, Marks, home_of
from pybroker.waiting.fair_shares import Holder

OPENING = ["open", "open", "open"]
COMMITTING = ["together", "together", "again", "part", "unheard", "abort"]
AROUND = ["restart", "refuse", "allow", "ring", "time", "crash", "turn"]
STEPS = st.lists(
    st.tuples(st.sampled_from([*OPENING, *COMMITTING, *AROUND]), st.integers(0, 5), st.integers(0, 12)), max_size=40
)


async def walk(steps: Sequence[Step]) -> None:
    await SinkWorld().play(steps)


@settings(max_examples=15)
@given(STEPS)
def test_interrupted_sink_batches_are_committed_once_and_whole(steps: list[Step]) -> None:
    asyncio.run(walk(steps))


# --- planted bugs ---------------------------------------------------------------------------------------------------------

BATCH: list[Step] = [("open", 0, 11), ("open", 2, 11), ("together", 0, 11)]
LONG: list[Step] = [
    *BATCH,
    ("open", 0, 11),
    ("open", 0, 11),
    ("open", 0, 11),
    ("part", 0, 11),  # one is left out
    ("again", 2, 11),
    ("again", 2, 11),
    *BATCH * 8,
    *[("open", 1, 11), ("together", 1, 11)] * 8,
    ("crash", 0, 0),
    ("open", 0, 11),
    ("open", 0, 11),
    ("crash", 0, 0),
    ("again", 2, 11),  # a batch of before the crashes
    ("open", 0, 11),
    *[("ring", 0, 0), ("time", 0, 11)] * 4,  # one has timed out
    ("open", 0, 11),
    ("together", 0, 11),  # refused: it is among them
    ("restart", 0, 0),
    ("open", 0, 11),
    ("unheard", 0, 11),
    ("restart", 0, 0),
    *BATCH,
    ("open", 0, 11),
    ("open", 0, 11),
    ("refuse", 0, 0),
    ("together", 0, 11),
    ("crash", 0, 0),  # while topics do not know
    ("allow", 0, 11),
    ("ring", 0, 11),
    ("open", 0, 11),
    ("open", 0, 11),
    ("together", 0, 0),
    ("again", 0, 1),  # answered before what it repeats?
    ("crash", 0, 0),
    ("together", 0, 11),
    ("together", 1, 11),
    ("open", 0, 11),
    *[("open", 1, 11), ("together", 1, 11)] * 12,  # the log is written anew, with one open
    ("crash", 0, 0),
    ("together", 0, 11),
    *[("open", 1, 11), ("together", 1, 11)] * 6,  # one mark stands still
]


def test_long_script_passes_without_mutant() -> None:
    asyncio.run(walk(LONG))


def _commits_one_by_one(patch: pytest.MonkeyPatch) -> None:
    """Each transaction has its own record, and the mark follows."""
    append = Coordinator._append

    def apart(self: Coordinator, record: Record) -> asyncio.Future[None]:
        if record.kind is not Kind.TOGETHER:
            return append(self, record)
        for least in record.commits[:-1]:
            append(self, Record(record.v, Kind.COMMITTING, least, record.last))
        # The rest is in a batch of the journal that is lost.
        self.state.apply(record)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    patch.setattr(Coordinator, "_append", apart)


def _repeats_are_committed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Marks, "is_repeat", lambda *_args, **_more: False)


def _the_last_batch_is_no_repeat(patch: pytest.MonkeyPatch) -> None:
    def is_repeat(self: Marks, label: Label, asking: Asking, *, takes_over: bool) -> bool:
        mark = self.get(label.sink)
        return mark is not None and label.batch < mark.batch

    patch.setattr(Marks, "is_repeat", is_repeat)


def _marks_are_not_written_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CoordinatorState, "whole_mark", lambda _self, _sink: None)


def _marks_have_no_place(patch: pytest.MonkeyPatch) -> None:
    stands = LogPositions.stands

    def partly(self: LogPositions, key: PlaceKey, position: object) -> None:
        if not isinstance(key, str):
            stands(self, key, position)  # type: ignore[arg-type]

    patch.setattr(LogPositions, "stands", partly)


def _commits_what_has_been_aborted(patch: pytest.MonkeyPatch) -> None:
    together = CoordinatorState.together

    def careless(
        self: CoordinatorState, label: Label, leasts: list[int], *args: object, **more: object
    ) -> Record | None:
        known = [least for least in leasts if self.find(least) is not None]
        return together(self, label, known, *args, **more)  # type: ignore[arg-type]

    patch.setattr(CoordinatorState, "together", careless)


def _leaves_others_open(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CoordinatorState, "_open_among", lambda *_args: [])


def _reads_the_mark_only(patch: pytest.MonkeyPatch) -> None:
    apply = CoordinatorState.apply

    def partly(self: CoordinatorState, record: Record) -> Transaction | None:
        if record.kind is Kind.TOGETHER and record.commits:
            record = msgspec.structs.replace(record, commits=record.commits[:1])
        return apply(self, record)

    patch.setattr(CoordinatorState, "apply", partly)


def _written_again_without_the_sink(patch: pytest.MonkeyPatch) -> None:
    whole = CoordinatorState.whole

    def bare(self: CoordinatorState, transaction: Transaction) -> Record:
        return msgspec.structs.replace(whole(self, transaction), sink="")

    patch.setattr(CoordinatorState, "whole", bare)


def _answers_before_topics_know(patch: pytest.MonkeyPatch) -> None:
    async def at_once(self: Coordinator, sink: str) -> None:
        pass

    patch.setattr(Coordinator, "sink_committed", at_once)


BUGS = [
    _commits_one_by_one,
    _repeats_are_committed,
    _the_last_batch_is_no_repeat,
    _marks_are_not_written_again,
    _marks_have_no_place,
    _commits_what_has_been_aborted,
    _leaves_others_open,
    _reads_the_mark_only,
    _written_again_without_the_sink,
    _answers_before_topics_know,
]


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__.strip("_"))
def test_model_finds_mutant(plant: Plant) -> None:
    with found_by_walk(plant):
        asyncio.run(asyncio.wait_for(walk(LONG), 20))


# --- rules ------------------------------------------------------------------------------------------------------------------


def state_with(*marks: tuple[str, Mark]) -> CoordinatorState:
    state = CoordinatorState(7)
    for sink, mark in marks:
        state.marks.put(sink, mark)
    return state


def opened(state: CoordinatorState, label: Label | None, owner: str | None = None) -> int:
    record = state.new(0, 1000, owner, label)
    state.apply(record)
    return record.least


def test_only_transactions_opened_for_the_batch_are_committed() -> None:
    state = state_with()
    label = Label("s", 3, "w", "")
    for other in (None, Label("t", 3, "w", ""), Label("s", 4, "w", ""), Label("s", 3, "x", "")):
        least = opened(state, other)
        with pytest.raises(InvalidTxnStatus, match="nothing was committed"):
            state.together(label, [opened(state, label), least], ANYBODY, 0, "", takes_over=False)
    with pytest.raises(TransactionNotFound):
        state.together(label, [opened(state, label), 1000], ANYBODY, 0, "", takes_over=False)
    assert all(each.action is None for each in state.transactions())


def test_sink_transaction_is_not_committed_alone_but_can_be_aborted() -> None:
    state = state_with()
    least = opened(state, Label("s", 3, "w", ""))
    transaction = state.find(least)
    assert transaction is not None
    with pytest.raises(InvalidTxnStatus, match="batch 3 of the sink s"):
        state.end(transaction, TxnAction.COMMIT)
    assert state.end(transaction, TxnAction.ABORT) is not None
    record = state.together(Label("s", 3, "w", ""), [least], ANYBODY, 0, "", takes_over=False)
    assert record is not None
    state.apply(record)
    assert state.end(transaction, TxnAction.COMMIT) is None, "it is under way"


def test_sink_belongs_to_writer_until_taken_over() -> None:
    state = state_with(("s", Mark(9, "w", None, 0)))
    other = Label("s", 0, "other", "")
    with pytest.raises(InvalidTxnStatus, match="'w'"):
        state.together(other, [], ANYBODY, 0, "", takes_over=False)
    record = state.together(other, [], ANYBODY, 5, "", takes_over=True)
    assert record is not None
    state.apply(record)
    assert state.marks.get("s") == Mark(0, "other", None, 5)
    assert state.together(other, [], ANYBODY, 0, "", takes_over=True) is None, "its own batches are repeats again"


def test_sink_and_its_transactions_belong_to_creating_role() -> None:
    state = state_with(("s", Mark(9, "w", "alice", 0)))
    label, bob = Label("s", 10, "w", ""), Asking("bob", may_all=False)
    with pytest.raises(AuthorizationError):
        state.together(label, [], bob, 0, "", takes_over=True)
    fresh = Label("u", 0, "w", "")
    alices = opened(state, fresh, "alice")
    with pytest.raises(TransactionNotFound):
        state.together(fresh, [alices], bob, 0, "", takes_over=False)
    assert state.left_open("u", 0, bob) == []
    record = state.together(fresh, [], bob, 0, "", takes_over=False)
    assert record is not None
    assert (record.aborts, record.owner) == ((), "bob")
    root = state.together(label, [], Asking("root", may_all=True), 0, "", takes_over=False)
    assert root is not None
    assert root.owner == "alice", "a super user's help does not take it away"


def test_oldest_idle_mark_is_dropped_at_the_limit() -> None:
    marks = Marks()
    for number in range(3):
        marks.put(f"s{number}", Mark(0, "w", None, number))
    marks.put("s0", Mark(1, "w", None, 100))
    holder = Holder("address 10.0.0.1")
    assert marks.makes_room("s1", holder, 3, 1000, 500) == "", "it is there"
    assert marks.makes_room("new", holder, 4, 1000, 500) == "", "there is room"
    with pytest.raises(TooManyRequests, match="maxTransactionSinksPerCoordinator"):
        marks.makes_room("new", holder, 3, 1000, 500)
    assert marks.makes_room("new", holder, 3, 499, 500) == "s1"


def test_role_at_its_share_of_marks_replaces_its_own_oldest() -> None:
    marks, greedy, honest = Marks(), Holder("role greedy"), Holder("role honest")
    marks.put("honest-0", Mark(0, "w", "honest", 0))
    for number in range(11):
        assert marks.makes_room(f"s{number}", greedy, 16, 1000, 500) == ""
        marks.put(f"s{number}", Mark(0, "w", "greedy", number))
    with pytest.raises(TooManyRequests, match="role greedy holds 11 of 16"):
        marks.makes_room("s11", greedy, 16, 1000, 500)
    assert marks.makes_room("s-more", greedy, 16, 400, 500) == "s0", "its own oldest, not that of another role"
    assert marks.makes_room("honest-1", honest, 16, 400, 500) == "", "another role has room"


def test_home_of_sink_never_changes() -> None:
    assert [home_of(f"sink-{number}") for number in range(6)] == [15, 12, 8, 11, 0, 3]
    assert {home_of(str(number)) for number in range(1000)} == set(range(16))


def test_takeover_aborts_open_transactions_of_previous_writer() -> None:
    state = state_with(("s", Mark(900, "old", None, 0)))
    late = opened(state, Label("s", 901, "old", "1"))
    label = Label("s", 0, "new", "1")
    mine = opened(state, label)
    assert [each.id.least for each in state.left_by_other_runs(label, ANYBODY)] == [late]
    record = state.together(label, [mine], ANYBODY, 0, "", takes_over=True)
    assert record is not None
    assert (record.commits, record.aborts) == ((mine,), (late,))
