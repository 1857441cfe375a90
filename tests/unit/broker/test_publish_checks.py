"""What a topic refuses to store, message by message."""

from __future__ import annotations

from typing import Any

from pybroker.broker.publishing.publish_checks import PublishChecks, rows
from pybroker.errors import BrokerError, MetadataError, NotAllowedError
from pybroker.model.events import SendRun
from pybroker.wire import pulsar_api_pb2 as pb

KEYS = [pb.EncryptionKeys(key="k", value=b"v")]


def entry(size_bytes: int = 10, **metadata: Any) -> bytes:
    header = pb.MessageMetadata(
        **{"producer_name": "p", "sequence_id": 0, "publish_time": 1000, **metadata}
    ).SerializeToString()
    return len(header).to_bytes(4, "big") + header + bytes(size_bytes)


def run_of(*entries: bytes) -> SendRun:
    run = SendRun(3)
    for index, payload in enumerate(entries):
        run.payloads.append(payload)
        run.sequence_ids.append(index)
        run.highest_sequence_ids.append(index + 100)
        run.message_counts.append(index + 1)
        run.size_bytes += len(payload)
    return run


def split(checks: PublishChecks, run: SendRun) -> tuple[list[int], list[tuple[list[int], type[BrokerError]]]]:
    """The sequence ids of what may be stored, and of what may not."""
    kept, refused = checks.split(run)
    return kept.sequence_ids, [(part.sequence_ids, type(error)) for part, error in refused]


def test_a_run_without_anything_to_refuse_is_passed_on_as_it_is() -> None:
    run = run_of(entry(), entry())
    assert PublishChecks(100, 50, False).split(run) == (run, [])


def test_messages_over_the_size_are_refused_one_by_one() -> None:
    checks = PublishChecks(100, 0, False)
    assert split(checks, run_of(entry(10), entry(200), entry(10), entry(300))) == (
        [0, 2],
        [([1], NotAllowedError), ([3], NotAllowedError)],
    )


def test_a_message_as_large_as_the_limit_passes() -> None:
    payload = entry(50)
    assert split(PublishChecks(len(payload), 0, False), run_of(payload))[1] == []
    assert split(PublishChecks(len(payload) - 1, 0, False), run_of(payload))[0] == []


def test_parts_of_a_larger_message_are_not_measured() -> None:
    chunk = entry(500, uuid="u", num_chunks_from_msg=2, chunk_id=0, total_chunk_msg_size=1000)
    assert split(PublishChecks(100, 0, False), run_of(chunk)) == ([0], [])


def test_messages_that_are_not_encrypted_are_refused_where_they_must_be() -> None:
    checks = PublishChecks(0, 0, True)
    assert split(checks, run_of(entry(), entry(encryption_keys=KEYS))) == ([1], [([0], MetadataError)])
    assert split(checks, run_of(b"\0\0\1\0broken")) == ([], [([0], MetadataError)])


def test_messages_to_be_delivered_too_late_are_refused() -> None:
    checks = PublishChecks(0, 500, False)
    assert split(checks, run_of(entry(deliver_at_time=1500), entry(deliver_at_time=1501))) == (
        [0],
        [([1], NotAllowedError)],
    )


def test_rows_take_everything_of_a_message_along() -> None:
    chunk = entry(5, uuid="u", num_chunks_from_msg=2, chunk_id=0, total_chunk_msg_size=1000)
    run = run_of(entry(1), chunk, entry(3))
    run.chunk_count = 1
    part = rows(run, [1, 2])
    assert (part.producer_id, part.sequence_ids, part.highest_sequence_ids) == (3, [1, 2], [101, 102])
    assert (part.message_counts, part.payloads, part.chunk_count) == ([2, 3], run.payloads[1:], 1)
    assert part.size_bytes == len(run.payloads[1]) + len(run.payloads[2])
    assert rows(run, [0]).chunk_count == 0
