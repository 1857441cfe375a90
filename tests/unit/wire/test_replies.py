"""Hand-written encodings are what protobuf reads, for ids of every length."""

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.unit.wire.support import EXAMPLES, ids

from pybroker.errors import BrokerError, ConsumerBusy, ServiceNotReady, UnknownError
from pybroker.server.outbox import JOIN_BELOW_BYTES
from pybroker.wire import core, replies
from pybroker.wire import pulsar_api_pb2 as pb

MASK_64 = (1 << 64) - 1
PYTHON = SimpleNamespace(send_receipts=replies.python_send_receipts, messages=replies.python_messages)
needs_compiler = pytest.mark.skipif(core.COMPILED is None, reason="the core of wire is not compiled here")
both = pytest.mark.parametrize(
    "encoder", [pytest.param(PYTHON, id="python"), pytest.param(core.COMPILED, id="compiled", marks=needs_compiler)]
)


def frames_of(data: bytes) -> Iterator[tuple[pb.BaseCommand, bytes]]:
    """Yield each command with the bytes behind it."""
    pos = 0
    while pos < len(data):
        total, size = struct.unpack_from(">II", data, pos)
        end = pos + 4 + total
        assert end <= len(data)
        command = pb.BaseCommand.FromString(data[pos + 8 : pos + 8 + size])
        assert command.IsInitialized()
        yield command, data[pos + 8 + size : end]
        pos = end


def only(data: bytes) -> pb.BaseCommand:
    ((command, tail),) = frames_of(data)
    assert tail == b""
    return command


# Of any length, and consecutive values as a producer sends them, across a change of length.
runs = st.one_of(
    st.lists(ids, max_size=6),
    st.builds(
        lambda edge, count: [edge - 2 + i for i in range(count)],
        st.sampled_from([1 << 7, 1 << 14, 1 << 28]),
        st.integers(0, 5),
    ),
)


@both
@EXAMPLES
@given(ids, runs, st.lists(st.one_of(st.just(0), ids), min_size=6, max_size=6), ids, st.integers(0, (1 << 64) - 10))
def test_receipts_say_what_was_asked(
    encoder: Any,
    producer_id: int,
    sequence_ids: list[int],
    highest: list[int],
    ledger_id: int,
    first_entry_id: int,
) -> None:
    assume(sequence_ids)
    highest = highest[: len(sequence_ids)]
    data = encoder.send_receipts(producer_id, sequence_ids, highest, ledger_id, first_entry_id)
    expected = [
        pb.BaseCommand(
            type=pb.BaseCommand.SEND_RECEIPT,
            send_receipt=pb.CommandSendReceipt(
                producer_id=producer_id,
                sequence_id=sequence_id,
                message_id=pb.MessageIdData(ledgerId=ledger_id, entryId=first_entry_id + index),
                highest_sequence_id=highest[index] or (1 << 64) - 1,
            ),
        )
        for index, sequence_id in enumerate(sequence_ids)
    ]
    assert list(frames_of(data)) == [(command, b"") for command in expected]


near_blocks = st.one_of(
    st.integers(0, 1 << 31), st.sampled_from([0, 0x7F, 0x80, 0x3FFE, 0x4000, 0x7FFF, (1 << 28) - 2, 1 << 28])
)


@both
@EXAMPLES
@given(near_blocks, near_blocks, st.integers(1, 300))
def test_receipts_of_consecutive_messages_say_the_same_as_one_by_one(
    encoder: Any, sequence_id: int, entry_id: int, count: int
) -> None:
    together = encoder.send_receipts(3, list(range(sequence_id, sequence_id + count)), [0] * count, 700, entry_id)
    single = [replies.send_receipts(3, [sequence_id + i], [0], 700, entry_id + i) for i in range(count)]
    assert together == b"".join(single)


@EXAMPLES
@given(ids, runs, st.sampled_from([0, -1]), st.data())
def test_receipts_of_messages_that_are_not_stored_name_one_id(
    producer_id: int, sequence_ids: list[int], id_part: int, data: st.DataObject
) -> None:
    highest = data.draw(st.lists(st.one_of(st.just(0), ids), min_size=len(sequence_ids), max_size=len(sequence_ids)))
    together = replies.send_receipts_of_one_id(producer_id, sequence_ids, highest, id_part)
    single = [
        replies.send_receipts(producer_id, [sequence_id], [highest[index]], id_part, id_part)
        for index, sequence_id in enumerate(sequence_ids)
    ]
    assert together == b"".join(single)


@both
def test_as_many_highest_as_sequence_ids_are_asked_for(encoder: Any) -> None:
    with pytest.raises((AssertionError, ValueError), match="lists"):
        encoder.send_receipts(1, [1, 2], [0], 5, 0)


words = st.integers(-(1 << 63), (1 << 63) - 1)
PAYLOADS = st.one_of(
    st.binary(max_size=20), st.sampled_from([b"y" * 200, b"z" * (JOIN_BELOW_BYTES - 1), b"z" * JOIN_BELOW_BYTES])
)


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[list[int], list[bytes], list[int] | None, list[list[int] | None] | None]:
    entry_ids = draw(runs)
    count = len(entry_ids)
    payloads = draw(st.lists(PAYLOADS, min_size=count, max_size=count))
    redeliveries = st.lists(st.integers(0, (1 << 32) - 1), min_size=count, max_size=count)
    sets = st.lists(st.one_of(st.none(), st.lists(words, max_size=40)), min_size=count, max_size=count)
    return entry_ids, payloads, draw(st.one_of(st.none(), redeliveries)), draw(st.one_of(st.none(), sets))


@both
@EXAMPLES
@given(ids, ids, deliveries(), st.one_of(st.just(-1), ids), st.one_of(st.just(-1), st.integers(0, (1 << 31) - 1)))
def test_messages_say_what_was_asked(
    encoder: Any,
    consumer_id: int,
    ledger_id: int,
    delivery: tuple[list[int], list[bytes], list[int] | None, list[list[int] | None] | None],
    epoch: int,
    partition: int,
) -> None:
    entry_ids, payloads, redeliveries, ack_sets = delivery
    parts, size_bytes, largest_bytes = encoder.messages(
        consumer_id, ledger_id, entry_ids, payloads, redeliveries, ack_sets, epoch, partition
    )
    assert size_bytes == sum(map(len, parts))
    assert largest_bytes == max(map(len, payloads), default=0)
    large = [payload for payload in payloads if len(payload) >= JOIN_BELOW_BYTES]
    assert [part for part in parts if any(part is payload for payload in large)] == large, "a large payload was copied"
    frames = list(frames_of(b"".join(parts)))
    assert [tail for _, tail in frames] == payloads
    for index, (command, _) in enumerate(frames):
        expected = pb.CommandMessage(
            consumer_id=consumer_id,
            message_id=pb.MessageIdData(
                ledgerId=ledger_id, entryId=entry_ids[index], partition=None if partition < 0 else partition
            ),
            redelivery_count=(redeliveries[index] if redeliveries else 0) or None,
            ack_set=(ack_sets[index] if ack_sets else None) or [],
            consumer_epoch=None if epoch < 0 else epoch,
        )
        assert command == pb.BaseCommand(type=pb.BaseCommand.MESSAGE, message=expected)


@both
def test_ack_sets_may_come_as_unsigned_words(encoder: Any) -> None:
    parts, _, _ = encoder.messages(1, 5, [0], [b"x"], None, [[MASK_64]], -1, -1)
    ((command, _),) = frames_of(b"".join(parts))
    assert list(command.message.ack_set) == [-1]


def test_ping_and_pong_hold_their_message() -> None:
    assert only(replies.PING) == pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing())
    assert only(replies.PONG) == pb.BaseCommand(type=pb.BaseCommand.PONG, pong=pb.CommandPong())


@pytest.mark.parametrize("error_type", BrokerError.by_code.values(), ids=lambda error_type: error_type.__name__)
def test_every_error_is_answered_with_its_own_code(error_type: type[BrokerError]) -> None:
    failure = error_type("what to do")
    _, text = replies.code_and_text(failure)
    assert text.startswith("what to do")
    answer = only(replies.error(7, failure)).error
    assert (answer.request_id, answer.message) == (7, text)
    assert pb.ServerError.Name(answer.error) == error_type.__name__
    refusal = only(replies.send_error(1, 2, failure)).send_error
    assert (refusal.producer_id, refusal.sequence_id, refusal.message) == (1, 2, text)
    assert pb.ServerError.Name(refusal.error) == error_type.__name__
    response = only(replies.ack_response(3, 4, failure)).ackResponse
    assert (response.consumer_id, response.request_id, response.message) == (3, 4, text)
    assert pb.ServerError.Name(response.error) == error_type.__name__


def test_an_error_without_request_has_the_request_id_minus_one() -> None:
    assert only(replies.error(-1, ConsumerBusy(""))).error.request_id == replies.NO_REQUEST_ID


def test_an_unknown_error_is_still_marked_as_an_error() -> None:
    assert only(replies.ack_response(1, 2, UnknownError("x"))).ackResponse.HasField("error")


def test_a_good_ack_response_has_no_error() -> None:
    response = only(replies.ack_response(1, 2, None)).ackResponse
    assert not response.HasField("error")
    assert not response.HasField("message")


def test_success_and_closing_commands_name_what_they_are_for() -> None:
    assert only(replies.success(9)).success.request_id == 9
    producer = only(replies.close_producer(3)).close_producer
    assert (producer.producer_id, producer.request_id) == (3, replies.NO_REQUEST_ID)
    consumer = only(replies.close_consumer(4)).close_consumer
    assert (consumer.consumer_id, consumer.request_id) == (4, replies.NO_REQUEST_ID)


# --- refusals ----------------------------------------------------------------------------------------------------------


def refusal_texts(failure: BrokerError) -> set[str]:
    """Return the texts of every kind of response to `failure`."""
    answers = (replies.error(1, failure), replies.send_error(1, 1, failure), replies.ack_response(1, 1, failure))
    commands = [pb.BaseCommand.FromString(answer[8:]) for answer in answers]
    return {command.error.message or command.send_error.message or command.ackResponse.message for command in commands}


def test_a_client_that_is_told_to_try_again_keeps_its_connection() -> None:
    # The C++ client searches for one of three phrases, and closes the connection without them.
    reasons = ("topic t is being unloaded, try again", "subscription s is being made, try again")
    assert refusal_texts(ServiceNotReady(reasons[0])) == {reasons[0]}
    assert refusal_texts(ServiceNotReady(reasons[1])) == {f"{reasons[1]} (Failed to acquire ownership)"}
    assert refusal_texts(ConsumerBusy(reasons[1])) == {reasons[1]}


def test_a_codes_text_is_made_in_one_place() -> None:
    source = Path(replies.__file__).parents[1]
    for path in [*source.glob("server/**/*.py"), *source.glob("wire/*.py")]:
        for line in path.read_text(encoding="utf-8").splitlines():
            # A code without its text must not be the one whose text matters.
            if re.search(r"\.(error|error_code) = ", line):
                assert re.search(r"= pb\.ServerError\.(?!ServiceNotReady)", line), f"{path.name}: {line}"
