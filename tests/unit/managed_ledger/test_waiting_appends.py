"""Appends that wait for the next ledger."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pybroker.errors import StoreError
from pybroker.ledgers.ledger_store import AppendListener, AppendRun
from pybroker.managed_ledger.rollover import PendingAppends

LEDGER_ID = 7


class NoListener(AppendListener):
    """These tests complete no append."""

    def append_completed(self, runs: list[AppendRun], error: StoreError | None) -> None:
        raise AssertionError


def split_context(context: object, entry_count: int) -> tuple[object, object]:
    assert isinstance(context, list)
    return context[:entry_count], context[entry_count:]


def run_of(first_entry_id: int, numbers: list[int]) -> AppendRun:
    payloads = [b"%d" % number for number in numbers]
    counts = [number % 3 + 1 for number in numbers]
    return AppendRun(NoListener(), LEDGER_ID, first_entry_id, payloads, counts, sum(map(len, payloads)), numbers)


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    unknown_runs=st.integers(0, 6),
    first_entry_id=st.integers(0, 3),
    stored=st.integers(0, 40),
)
def test_seal_divides_unknown_appends_into_stored_and_waiting_ones(
    sizes: list[int], unknown_runs: int, first_entry_id: int, stored: int
) -> None:
    pending = PendingAppends()
    position, number = first_entry_id, 0
    unknown_numbers: list[int] = []
    all_numbers: list[int] = []
    for index, size in enumerate(sizes):
        numbers = list(range(number, number + size))
        number += size
        all_numbers += numbers
        if index < unknown_runs:
            pending.add_unknown([run_of(position, numbers)])
            position += size
            unknown_numbers += numbers
        else:
            pending.wait(run_of(-1, numbers))
    assert pending.has_unknown is bool(unknown_numbers)
    completed = pending.decide(LEDGER_ID, stored, split_context)
    left = pending.take_all()
    assert not pending
    expected = unknown_numbers[: max(0, stored - first_entry_id)]
    assert [int(payload) for run in completed for payload in run.payloads] == expected
    assert [int(payload) for run in left for payload in run.payloads] == all_numbers[len(expected) :]
    next_id = first_entry_id
    for run in completed:
        assert run.first_entry_id == next_id
        next_id += len(run.payloads)
    for run in completed + left:
        assert run.payloads, "no run is empty"
        assert run.context == [int(payload) for payload in run.payloads]
        assert run.message_counts == [number % 3 + 1 for number in run.context]
        assert run.message_count == sum(run.message_counts)
        assert run.size_bytes == sum(map(len, run.payloads))
