"""Events start empty, and none shares its lists with another."""

from pybroker.errors import ChecksumError
from pybroker.model.events import NO_REQUEST, Ack, Flow, PartialAck, SendRefused, SendRun


def test_a_run_starts_empty_and_on_its_own() -> None:
    first, second = SendRun(1), SendRun(2)
    first.sequence_ids.append(5)
    assert (second.sequence_ids, second.highest_sequence_ids, second.message_counts, second.payloads) == (
        [],
        [],
        [],
        [],
    )
    assert (second.producer_id, second.size_bytes) == (2, 0)


def test_an_acknowledgement_starts_as_an_individual_one_that_asks_for_no_receipt() -> None:
    first, second = Ack(1), Ack(2)
    first.groups.append((1, [2]))
    first.partials.append(PartialAck(1, 3, [1], 8))
    assert (second.groups, second.partials) == ([], [])
    assert (second.consumer_id, second.request_id, second.is_cumulative, second.txn) == (2, NO_REQUEST, False, None)


def test_events_hold_what_they_are_made_of() -> None:
    flow = Flow(3, 1000)
    assert (flow.consumer_id, flow.permits) == (3, 1000)
    error = ChecksumError("bad")
    refused = SendRefused(1, 2, error)
    assert (refused.producer_id, refused.sequence_id, refused.error) == (1, 2, error)
    partial = PartialAck(5, 6, [7], 8)
    assert (partial.ledger_id, partial.entry_id, partial.ack_set, partial.batch_size) == (5, 6, [7], 8)
