"""A coordinator beside what its clients were answered, through crashes between any two turns of the loop; and its planted bugs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzz.transactions.coordinator_world import CoordinatorWorld, Step
from tests.support.planting import Plant, found_by_walk

from pybroker.managed_ledger.retention import RetentionLimits
from pybroker.model.txn_id import TxnAction, TxnId
from pybroker.transactions import log_positions, transaction_log
from pybroker.transactions.coordinator import Coordinator
from pybroker.transactions.coordinator_state import CoordinatorState, Status, Transaction
from pybroker.transactions.log_positions import LogPositions
from pybroker.transactions.participant_notification import Endings
from pybroker.transactions.records import WITHOUT_SINKS, Kind, Record
from pybroker.transactions.transaction_log import TransactionLog

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "new",
                "new",
                "add",
                "add",
                "commit",
                "commit",
                "abort",
                "refuse",
                "allow",
                "time",
                "ring",
                "crash",
                "turn",
            ]
        ),
        st.integers(0, 5),
        st.integers(0, 12),
    ),
    max_size=40,
)


async def walk(steps: list[Step]) -> None:
    await CoordinatorWorld().play(steps)


@settings(max_examples=20)
@given(STEPS)
def test_interrupted_transactions_end_once_and_in_one_way(steps: list[Step]) -> None:
    asyncio.run(walk(steps))


# --- planted bugs ---------------------------------------------------------------------------------------------------------

LONG: list[Step] = [
    ("new", 5, 11),
    ("add", 0, 11),
    *[("new", 0, 11), ("add", 0, 11), ("commit", 0, 11)] * 12,
    ("refuse", 1, 0),
    ("new", 5, 11),
    ("add", 0, 11),
    ("add", 1, 11),
    ("commit", 0, 11),
    ("crash", 0, 0),
    ("abort", 0, 11),
    ("allow", 0, 11),
    ("ring", 0, 11),
    ("crash", 0, 0),
    ("new", 0, 11),
    ("allow", 1, 0),
    ("commit", 0, 0),
    ("abort", 0, 3),
    ("commit", 0, 11),
    ("time", 0, 11),
    ("time", 0, 11),
    ("time", 0, 11),
    *[("new", 0, 11)] * 3,
    ("crash", 0, 0),
    ("new", 0, 11),
    ("time", 0, 11),
]


def test_long_script_passes_without_mutant() -> None:
    asyncio.run(walk(LONG))


def _no_last_id(patch: pytest.MonkeyPatch) -> None:
    """The highest id is found in the records of NEW only, and the log is trimmed to its end."""
    apply = CoordinatorState.apply

    def forgetful(self: CoordinatorState, record: Record) -> object:
        last = self.last_least
        found = apply(self, record)
        if record.kind is not Kind.NEW:
            self.last_least = last
        return found

    patch.setattr(CoordinatorState, "apply", forgetful)


def _answers_before_topics_know(patch: pytest.MonkeyPatch) -> None:
    begin_end = Coordinator._begin_end

    def hasty(self: Coordinator, transaction: Transaction, action: TxnAction) -> asyncio.Future[None]:
        ended = begin_end(self, transaction, action)
        if not ended.done():
            ended.set_result(None)
        return ended

    patch.setattr(Coordinator, "_begin_end", hasty)


def _tells_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    """And then dies: the next run does not know that it has committed."""
    append = Coordinator._append

    def lost(self: Coordinator, record: Record) -> asyncio.Future[None]:
        if record.kind in (Kind.COMMITTING, Kind.ABORTING):
            self.state.apply(record)
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done
        return append(self, record)

    patch.setattr(Coordinator, "_append", lost)


def _changes_direction(patch: pytest.MonkeyPatch) -> None:
    def end(self: CoordinatorState, transaction: Transaction, action: TxnAction) -> Record | None:
        kind = Kind.COMMITTING if action is TxnAction.COMMIT else Kind.ABORTING
        if transaction.status is Status.OPEN or transaction.action is not action:
            return Record(WITHOUT_SINKS, kind, transaction.id.least, self.last_least)
        return None

    patch.setattr(CoordinatorState, "end", end)


def _gives_up_on_a_topic(patch: pytest.MonkeyPatch) -> None:
    attempt = Endings._attempt

    async def once(self: Endings, ending: object) -> None:
        await attempt(self, ending)  # type: ignore[arg-type]
        found = self._by_id.pop(ending.txn_id, None)  # type: ignore[attr-defined]
        if found is not None:
            self._done(found)

    patch.setattr(Endings, "_attempt", once)


def _recovers_only_open_ones(patch: pytest.MonkeyPatch) -> None:
    go_on = Coordinator._go_on

    async def partly(self: Coordinator, state: CoordinatorState) -> None:
        self._tell = lambda _transaction: None  # type: ignore[assignment, method-assign]
        await go_on(self, state)
        del self._tell

    patch.setattr(Coordinator, "_go_on", partly)


def _forgets_time_outs_of_an_earlier_run(patch: pytest.MonkeyPatch) -> None:
    go_on = Coordinator._go_on

    async def without(self: Coordinator, state: CoordinatorState) -> None:
        self._time_out_at = lambda _transaction, _due_ms: None  # type: ignore[assignment, method-assign]
        await go_on(self, state)
        del self._time_out_at

    patch.setattr(Coordinator, "_go_on", without)


def _keeps_the_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(log_positions, "FEW_RECORDS", 1 << 30)
    patch.setattr(TransactionLog, "_let_go", lambda _self: None)


def _trims_what_is_open(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(log_positions, "FEW_RECORDS", 1 << 30)
    patch.setattr(LogPositions, "needed_from", lambda _self, last: last)


def _low_water_mark_too_high(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CoordinatorState, "low_water_mark", property(lambda self: self.last_least))


def _writes_again_without_participants(patch: pytest.MonkeyPatch) -> None:
    whole = CoordinatorState.whole

    def bare(self: CoordinatorState, transaction: Transaction) -> Record:
        found = whole(self, transaction)
        return Record(found.v, found.kind, found.least, found.last, found.opened_ms, found.timeout_ms, status="OPEN")

    patch.setattr(CoordinatorState, "whole", bare)


def _reads_from_the_end(patch: pytest.MonkeyPatch) -> None:
    """The cursor moves to the end before the log is read."""
    replay = TransactionLog._replay

    async def hasty(self: TransactionLog, apply: Callable[[Record], object]) -> None:
        self.managed.retention = RetentionLimits()
        self.cursor.state.mark_delete_to(self.managed.last_confirmed)
        await replay(self, apply)

    patch.setattr(TransactionLog, "_replay", hasty)


def _add_is_not_logged(patch: pytest.MonkeyPatch) -> None:
    add = CoordinatorState.add

    def silent(self: CoordinatorState, transaction: Transaction, *participants: Any) -> None:
        record = add(self, transaction, *participants)
        if record is not None:
            self.apply(record)

    patch.setattr(CoordinatorState, "add", silent)


BUGS = [
    _no_last_id,
    _answers_before_topics_know,
    _tells_before_it_is_durable,
    _changes_direction,
    _gives_up_on_a_topic,
    _recovers_only_open_ones,
    _forgets_time_outs_of_an_earlier_run,
    _keeps_the_log,
    _trims_what_is_open,
    _low_water_mark_too_high,
    _writes_again_without_participants,
    _reads_from_the_end,
    _add_is_not_logged,
]


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__.strip("_"))
def test_model_finds_mutant(plant: Plant) -> None:
    with found_by_walk(plant):
        asyncio.run(asyncio.wait_for(walk(LONG), 20))


def test_transaction_ids_carry_coordinator_id() -> None:
    state = CoordinatorState(7)
    state.apply(state.new(0, 1, None))
    assert [each.id for each in state.transactions()] == [TxnId(7, 1)]
    assert transaction_log.CURSOR == "transaction.subscription"
