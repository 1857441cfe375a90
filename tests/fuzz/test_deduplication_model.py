"""Every message is stored once whatever happens, and the walks that show it find bugs planted into the rules."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzz.deduplication_model import walk
from tests.support.planting import Plant, found_by_walk

from pybroker.broker.publishing import deduplication
from pybroker.broker.publishing.deduplication import Accepted, Deduplication
from pybroker.model.events import SendRun

SEEDS, STEPS = 60, 120


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.integers(min_value=0))
def test_each_message_is_stored_once_in_order(seed: int) -> None:
    walk(seed, STEPS)


def walk_many() -> None:
    for seed in range(SEEDS):
        walk(seed, STEPS)


def failures_leave_what_was_pushed(patch: pytest.MonkeyPatch) -> None:
    failed = Deduplication.failed

    def planted(self: Deduplication, accepted: Accepted) -> None:
        pushed = accepted.known.pushed
        failed(self, accepted)
        accepted.known.persisted = accepted.known.pushed = pushed

    patch.setattr(Deduplication, "failed", planted)


def sessions_go_on_after_a_failure(patch: pytest.MonkeyPatch) -> None:
    def planted(self: Deduplication, accepted: Accepted) -> None:
        """Refused, and forgotten."""

    patch.setattr(Deduplication, "refused", planted)


def every_part_of_a_message_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deduplication, "completes_message", lambda entry: True)


def batches_count_by_their_first_id(patch: pytest.MonkeyPatch) -> None:
    judge = Deduplication.judge

    def planted(self: Deduplication, name: str, session: object, run: SendRun) -> Any:
        run.highest_sequence_ids = [max(0, each - 4) for each in run.highest_sequence_ids]
        return judge(self, name, session, run)

    patch.setattr(Deduplication, "judge", planted)


def snapshots_hold_what_is_in_flight(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Deduplication, "snapshot", lambda self: {name: each.pushed for name, each in self._names.items()})


def the_last_entry_counts_and_not_the_highest(patch: pytest.MonkeyPatch) -> None:
    def planted(self: Deduplication, name: str, sequence_id: int) -> None:
        known = self._known(name)
        known.persisted = known.pushed = sequence_id - 1

    patch.setattr(Deduplication, "found", planted)


def what_is_in_flight_counts_as_stored(patch: pytest.MonkeyPatch) -> None:
    accept = Deduplication.accepted

    def planted(self: Deduplication, accepted: Accepted) -> None:
        accept(self, accepted)
        accepted.known.persisted = accepted.known.pushed

    patch.setattr(Deduplication, "accepted", planted)


BUGS = (
    failures_leave_what_was_pushed,
    sessions_go_on_after_a_failure,
    every_part_of_a_message_counts,
    batches_count_by_their_first_id,
    snapshots_hold_what_is_in_flight,
    the_last_entry_counts_and_not_the_highest,
    what_is_in_flight_counts_as_stored,
)


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_model_finds_mutant(plant: Plant) -> None:
    with found_by_walk(plant):
        walk_many()
