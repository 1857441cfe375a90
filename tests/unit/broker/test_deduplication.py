"""Which messages are new, which are duplicates, and of which nobody can say."""

from collections.abc import Sequence
from typing import Any

import pytest

from pybroker.broker.publishing.deduplication import NO_SEQUENCE_ID, Accepted, Deduplication, Verdict
from pybroker.model.events import SendRun
from pybroker.wire import pulsar_api_pb2 as pb

NEW, DUPLICATE, UNKNOWN = Verdict.NEW, Verdict.DUPLICATE, Verdict.UNKNOWN
MINUS_ONE = (1 << 64) - 1  # as it comes from the wire


class Harness:
    """One name, and a ledger that takes everything until it is told how that ended."""

    def __init__(self) -> None:
        self.known = Deduplication()
        self.session = object()
        self.in_flight: list[Accepted] = []

    def send(self, run: SendRun, name: str = "p") -> list[Verdict]:
        """The verdict for each message, after what is new was handed over."""
        verdicts: list[Verdict] = []
        for part in self.known.judge(name, self.session, run):
            if part.verdict is NEW:
                accepted = self.known.offered(name, self.session, part.highest)
                self.known.accepted(accepted)
                self.in_flight.append(accepted)
            count = len(run.sequence_ids) if part.indexes is None else len(part.indexes)
            verdicts += [part.verdict] * count
        self.known.check_invariants()
        return verdicts

    def end(self, *, stored: bool = True) -> None:
        """All that is in flight."""
        for accepted in self.in_flight:
            (self.known.stored if stored else self.known.failed)(accepted)
        self.in_flight.clear()
        self.known.check_invariants()

    def store(self, *sequence_ids: int) -> list[Verdict]:
        verdicts = self.send(run_of(sequence_ids))
        self.end()
        return verdicts


def run_of(sequence_ids: Sequence[int], highest: Sequence[int] = ()) -> SendRun:
    run = SendRun(1)
    run.sequence_ids = list(sequence_ids)
    run.highest_sequence_ids = list(highest) or [0] * len(sequence_ids)
    run.message_counts = [1] * len(sequence_ids)
    run.payloads = [entry() for _ in sequence_ids]
    return run


def chunks(sequence_id: int, chunk_ids: Sequence[int], of: int) -> SendRun:
    run = run_of([sequence_id] * len(chunk_ids))
    run.payloads = [entry(uuid="u", chunk_id=each, num_chunks_from_msg=of) for each in chunk_ids]
    run.chunk_count = len(chunk_ids)
    return run


def entry(**fields: Any) -> bytes:
    header = pb.MessageMetadata(**{"producer_name": "p", "sequence_id": 0, "publish_time": 1, **fields})
    data = header.SerializeToString()
    return len(data).to_bytes(4, "big") + data


@pytest.fixture
def harness() -> Harness:
    return Harness()


def test_rising_ids_are_new_and_what_was_stored_is_a_duplicate(harness: Harness) -> None:
    assert harness.store(0, 1, 5) == [NEW] * 3
    assert harness.store(5, 0, 3) == [DUPLICATE] * 3
    assert harness.store(5, 6) == [DUPLICATE, NEW]


def test_what_is_being_stored_is_unknown_until_that_has_ended(harness: Harness) -> None:
    harness.store(1)
    assert harness.send(run_of([2, 3])) == [NEW] * 2
    assert harness.send(run_of([1, 2, 3, 4])) == [DUPLICATE, UNKNOWN, UNKNOWN, NEW]
    assert not harness.known.is_settled("p")
    harness.end()
    assert harness.known.is_settled("p")
    assert harness.store(2, 3, 4) == [DUPLICATE] * 3


def test_the_same_id_twice_in_a_run_is_stored_once(harness: Harness) -> None:
    assert harness.send(run_of([7, 7, 8, 7])) == [NEW, UNKNOWN, NEW, UNKNOWN]


def test_ids_that_go_backwards_are_not_stored(harness: Harness) -> None:
    assert harness.send(run_of([10, 5, 11])) == [NEW, UNKNOWN, NEW]
    harness.end()
    assert harness.store(9) == [DUPLICATE]


def test_a_batch_counts_from_its_first_to_its_highest_id(harness: Harness) -> None:
    assert harness.send(run_of([0, 10], [9, 19])) == [NEW] * 2
    harness.end()
    assert harness.send(run_of([15, 20], [24, 29])) == [DUPLICATE, NEW]
    harness.end()
    assert harness.known.last_sequence_id("p") == 29
    assert harness.send(run_of([30], [12])) == [NEW]  # a highest id below the first one says nothing
    harness.end()
    assert harness.known.last_sequence_id("p") == 30


def test_batches_of_one_run_that_overlap_are_not_both_stored(harness: Harness) -> None:
    assert harness.send(run_of([0, 5], [9, 14])) == [NEW, UNKNOWN]


def test_ids_count_with_a_sign_as_clients_count_them(harness: Harness) -> None:
    assert harness.store(MINUS_ONE) == [NEW]
    assert harness.known.last_sequence_id("p") == -1
    assert harness.store(MINUS_ONE, 0, 1 << 63) == [DUPLICATE, NEW, DUPLICATE]
    assert harness.known.last_sequence_id("p") == 0


def test_a_message_in_parts_counts_with_its_last_part(harness: Harness) -> None:
    assert harness.send(chunks(4, [0, 1], of=3)) == [NEW] * 2
    harness.end()
    assert harness.known.last_sequence_id("p") == NO_SEQUENCE_ID
    assert harness.send(chunks(4, [0, 1, 2], of=3)) == [NEW] * 3  # it broke off, and begins again
    assert harness.send(chunks(4, [0, 2], of=3)) == [UNKNOWN] * 2
    harness.end()
    assert harness.send(chunks(4, [0, 1, 2], of=3)) == [DUPLICATE] * 3
    assert harness.known.last_sequence_id("p") == 4


def test_markers_are_stored_whatever_their_ids_are(harness: Harness) -> None:
    harness.store(5)
    run = run_of([5, 6])
    run.payloads[0] = entry(marker_type=10)
    run.has_markers = True
    assert harness.send(run) == [NEW, NEW]
    harness.end()
    assert harness.known.last_sequence_id("p") == 6


def test_what_was_not_stored_is_new_for_the_next_session_and_nothing_follows_it_in_this_one(harness: Harness) -> None:
    harness.store(1)
    harness.send(run_of([2]))
    harness.send(run_of([3]))
    harness.end(stored=False)
    assert harness.send(run_of([4])) == [Verdict.BEHIND_FAILURE]
    harness.session = object()
    assert harness.store(2, 3, 4) == [NEW] * 3


def test_what_the_ledger_refuses_ends_the_session_and_leaves_what_is_in_flight(harness: Harness) -> None:
    harness.send(run_of([1]))
    harness.known.refused(harness.known.offered("p", harness.session, 2))
    assert harness.known.has_failed("p", harness.session)
    assert harness.send(run_of([3])) == [Verdict.BEHIND_FAILURE]
    harness.session = object()
    assert not harness.known.has_failed("p", harness.session)
    assert harness.send(run_of([1, 2])) == [UNKNOWN, NEW]
    harness.end()
    assert harness.known.last_sequence_id("p") == 2


def test_what_is_stored_behind_a_failure_does_not_make_a_duplicate_of_what_failed(harness: Harness) -> None:
    harness.send(run_of([1]))
    harness.send(run_of([2]))
    first, second = harness.in_flight
    harness.known.failed(first)
    harness.known.stored(second)
    harness.in_flight.clear()
    harness.session = object()
    assert harness.store(1, 2) == [NEW] * 2


def test_names_have_nothing_to_do_with_each_other(harness: Harness) -> None:
    harness.store(5)
    assert harness.send(run_of([5]), "other") == [NEW]
    assert harness.known.last_sequence_id("third") == NO_SEQUENCE_ID
    assert harness.known.last_accepted("third") is None
    assert harness.known.last_accepted("other") is harness.in_flight[0]


def test_a_snapshot_and_what_came_behind_it_give_everything_back(harness: Harness) -> None:
    harness.store(1, 2)
    harness.send(run_of([9]), "other")  # in flight: not in the snapshot
    restored = Deduplication()
    assert harness.known.snapshot() == {"p": 2}
    for name, sequence_id in harness.known.snapshot().items():
        restored.found(name, sequence_id)
    restored.found("p", 4)
    restored.found("p", 3)
    restored.found("new", 0)
    assert restored.snapshot() == {"p": 4, "new": 0}


def test_names_are_forgotten_once_they_are_gone_for_long(harness: Harness) -> None:
    harness.store(1)
    harness.send(run_of([1]), "in flight")
    known = harness.known
    known.found("attached", 1)
    assert known.forget_inactive({"attached"}, 0, 100, 10) == 0
    assert known.forget_inactive({"attached"}, 99, 100, 10) == 0
    assert known.forget_inactive({"attached"}, 100, 100, 10) == 1
    assert len(known) == 2
    assert known.last_sequence_id("p") == NO_SEQUENCE_ID


def test_a_name_that_comes_back_is_not_gone(harness: Harness) -> None:
    harness.store(1)
    harness.known.forget_inactive((), 0, 100, 10)
    harness.known.forget_inactive({"p"}, 50, 100, 10)
    assert harness.known.forget_inactive((), 100, 100, 10) == 0
    assert harness.known.forget_inactive((), 200, 100, 10) == 1


def test_of_too_many_names_those_gone_longest_are_forgotten() -> None:
    known = Deduplication()
    known.found("first", 1)
    known.forget_inactive((), 0, 100, 10)
    for name in ("second", "third", "attached"):
        known.found(name, 1)
    assert known.forget_inactive({"attached"}, 1, 100, 2) == 2
    assert set(known.snapshot()) == {"third", "attached"}
    assert known.forget_inactive({"third", "attached"}, 2, 100, 1) == 0  # who is there is known
