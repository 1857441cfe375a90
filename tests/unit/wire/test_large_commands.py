"""Commands over 16 KiB: ids are returned in equivalent slices, and millions of fields are refused before they become
objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.wire.support import (
    EXAMPLES,
    MAX_BATCH_MESSAGES,
    MAX_FIELDS,
    connected_decoder,
    flow,
    frame,
    message,
    message_ids,
    metadata,
    send,
)

from pybroker.errors import ConsumerAssignError, MetadataError, NotAllowedError, ProtocolViolation
from pybroker.model.ack_set import word_count
from pybroker.model.events import Ack, CommandRefused, Flow, Redeliver, SendRun
from pybroker.model.txn_id import TxnId
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.command_fields import LARGE_COMMAND_BYTES
from pybroker.wire.commands import Decoder
from pybroker.wire.many_ids import SLICE_IDS, SLICE_STEPS, ManyIds
from pybroker.wire.varint import decode, encode

MAX_WORDS = word_count(MAX_BATCH_MESSAGES)
MASK_64 = (1 << 64) - 1
Row = tuple[int, int, tuple[int, ...], int]


def many(command: str, body: bytes) -> ManyIds:
    return ManyIds(command, b"front" + body + b"behind", 5, 5 + len(body), MAX_WORDS)


def rows_of(parts: list[Ack]) -> tuple[list[Row], list[Row]]:
    whole = [(ledger, entry, (), 0) for part in parts for ledger, entries in part.groups for entry in entries]
    partial = [(p.ledger_id, p.entry_id, tuple(p.ack_set), p.batch_size) for part in parts for p in part.partials]
    return whole, partial  # type: ignore[return-value]


def rows_by_protobuf(ids: list[pb.MessageIdData]) -> tuple[list[Row], list[Row]]:
    whole = [(each.ledgerId, each.entryId, (), 0) for each in ids if not each.ack_set]
    partial = [
        (each.ledgerId, each.entryId, tuple(word & MASK_64 for word in each.ack_set), max(0, each.batch_size))
        for each in ids
        if each.ack_set
    ]
    return whole, partial  # type: ignore[return-value]


@EXAMPLES
@given(st.lists(message_ids, max_size=30), st.booleans(), st.randoms())
def test_the_slices_of_an_ack_say_what_protobuf_reads(ids: list[pb.MessageIdData], asks: bool, random: Any) -> None:
    command = pb.CommandAck(consumer_id=7, ack_type=pb.CommandAck.Individual, message_id=ids * 40)
    if asks:
        command.request_id = 9
    parts = [part for part in many("ACK", command.SerializeToString()).slices() if isinstance(part, Ack)]
    assert rows_of(parts) == rows_by_protobuf(list(command.message_id))
    assert [part.request_id for part in parts] == [-1] * (len(parts) - 1) + [9 if asks else -1]
    assert {part.consumer_id for part in parts} == {7}
    assert all(sum(len(entries) for _, entries in part.groups) + len(part.partials) <= SLICE_IDS for part in parts)


def test_of_a_cumulative_ack_the_last_id_comes_out() -> None:
    ids = [pb.MessageIdData(ledgerId=1, entryId=index) for index in range(5000)]
    command = pb.CommandAck(consumer_id=7, ack_type=pb.CommandAck.Cumulative, message_id=ids, request_id=3)
    (part,) = [part for part in many("ACK", command.SerializeToString()).slices() if part is not None]
    assert isinstance(part, Ack)
    assert (part.is_cumulative, part.groups, part.request_id) == (True, [(1, [4999])], 3)


def test_an_ack_of_a_transaction_comes_out_as_a_whole() -> None:
    ids = [pb.MessageIdData(ledgerId=1, entryId=index) for index in range(5000)]
    command = pb.CommandAck(consumer_id=7, ack_type=0, message_id=ids, request_id=3, txnid_most_bits=1)  # type: ignore[arg-type]
    (part,) = [part for part in many("ACK", command.SerializeToString()).slices() if part is not None]
    assert isinstance(part, Ack)
    assert (part.txn, part.groups, part.request_id) == (TxnId(1, 0), [(1, list(range(5000)))], 3)


def test_the_slices_of_a_redelivery_name_every_message_once() -> None:
    ids = [pb.MessageIdData(ledgerId=index % 3, entryId=index, batch_index=1) for index in range(3000)]
    command = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=7, message_ids=ids, consumer_epoch=4)
    parts = [part for part in many("REDELIVER", command.SerializeToString()).slices() if part is not None]
    assert all(isinstance(part, Redeliver) and (part.consumer_id, part.epoch) == (7, 4) for part in parts)
    positions = [each for part in parts if isinstance(part, Redeliver) for each in part.positions]
    assert positions == [(index % 3, index) for index in range(3000)]
    assert len(parts) == 3000 // SLICE_IDS
    (everything,) = many("REDELIVER", b"\x08\x07").slices()
    assert isinstance(everything, Redeliver)
    assert everything.positions == []


def _id(rest: bytes) -> bytes:
    return b"\x1a" + encode(4 + len(rest)) + b"\x08\1\x10\1" + rest


WORST = {
    "the shortest ids": _id(b"") * 20_000,
    "words": _id(b"\x28\1" * 75_000),
    "packed words": _id(b"\x2a" + encode(100_000) + b"\1" * 100_000) * 3,
    "unknown fields": b"\x78\1" * 100_000,
    "unknown fields of an id": _id(b"\x78\1" * 75_000),
}


class Counted(bytes):
    """Bytes that count single accesses."""

    looks = 0

    def __getitem__(self, index: Any) -> Any:
        self.looks += 1
        return super().__getitem__(index)


@pytest.mark.parametrize("name", WORST)
def test_no_step_looks_at_more_than_its_share(name: str) -> None:
    body = Counted(b"\x08\1\x10\0" + WORST[name])
    steps: list[int] = []
    before = 0
    for part in ManyIds("ACK", body, 0, len(body), MAX_WORDS).slices():
        if isinstance(part, Ack):
            assert all(len(each.ack_set) <= MAX_WORDS for each in part.partials)
        steps.append(body.looks - before)
        before = body.looks
    assert len(steps) > 1 or body.looks < SLICE_STEPS  # unneeded fields are skipped at once
    assert max(steps) <= 4 * SLICE_STEPS


@pytest.mark.parametrize(
    "body",
    [
        b"\x10\0" + b"\x1a\x04\x08\1\x10\1",  # no consumer
        b"\x08\1" + b"\x1a\x04\x08\1\x10\1",  # no type
        b"\x08\1\x10\0\x1a\x02\x08\1",  # an id without entry
        b"\x08\1\x10\0\x1a\x7f\x08\1",  # an id that is longer than the command
        b"\x08\1\x10\0\x1a\x06\x08\1\x10\1\x2a\x09",  # words that are longer than the id
        b"\x08\1\x10\0\xff",
    ],
)
def test_ids_that_cannot_be_read_are_a_violation(body: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        list(many("ACK", body).slices())


# --- in the stream -----------------------------------------------------------------------------------------------------


def fed(decoder: Decoder, data: bytes) -> list[Any]:
    return decoder.feed(data)


def large_ids() -> Iterator[pb.BaseCommand]:
    ids = [pb.MessageIdData(ledgerId=1, entryId=index) for index in range(5000)]
    ack = pb.CommandAck(consumer_id=1, ack_type=0, message_id=ids)  # type: ignore[arg-type]
    yield pb.BaseCommand(type=pb.BaseCommand.ACK, ack=ack)
    redeliver = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=ids)
    yield pb.BaseCommand(
        type=pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES, redeliverUnacknowledgedMessages=redeliver
    )


def test_large_commands_of_ids_stay_in_their_place_among_others() -> None:
    for command in large_ids():
        first, large, last = fed(connected_decoder(), frame(flow(1, 1)) + frame(command) + frame(flow(2, 2)))
        assert (type(first), type(large), type(last)) == (Flow, ManyIds, Flow)
        assert sum(part is not None for part in large.slices()) == 5000 // SLICE_IDS + (large.command == "ACK")


def subscribe(**fields: Any) -> pb.BaseCommand:
    command = pb.CommandSubscribe(topic="t", subscription="s", subType=0, consumer_id=1, request_id=12, **fields)  # type: ignore[arg-type]
    return pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE, subscribe=command)


def test_a_large_command_of_few_fields_is_read() -> None:
    schema = pb.Schema(name="n", type=pb.Schema.Avro, schema_data=b"x" * (1 << 20))
    command = subscribe(schema=schema)
    assert fed(connected_decoder(), frame(command)) == [command]


@pytest.mark.parametrize(
    ("error", "fields"),
    [
        (MetadataError, {"metadata": [pb.KeyValue(key="key number one", value="")] * MAX_FIELDS}),
        (
            NotAllowedError,
            {
                "schema": pb.Schema(
                    name="",
                    type=0,  # type: ignore[arg-type]
                    schema_data=b"",
                    properties=[pb.KeyValue(key="k", value="v")] * 3000,  # type: ignore[list-item]
                )
            },
        ),
        (
            ConsumerAssignError,
            {"keySharedMeta": pb.KeySharedMeta(keySharedMode=1, hashRanges=[pb.IntRange(start=1, end=2)] * 3000)},  # type: ignore[arg-type]
        ),
    ],
)
def test_a_request_of_too_many_fields_is_refused_under_its_id(error: type[Exception], fields: dict[str, Any]) -> None:
    refused, after = fed(connected_decoder(), frame(subscribe(**fields)) + frame(flow(1, 1)))
    assert isinstance(refused, CommandRefused)
    assert (refused.request_id, type(refused.error)) == (12, error)
    assert isinstance(after, Flow)


def test_what_no_client_sends_as_large_is_a_violation() -> None:
    unknown = b"\x78\1" * LARGE_COMMAND_BYTES
    for command_type, tag in ((pb.BaseCommand.SEND, b"\x32"), (pb.BaseCommand.FLOW, b"\x5a")):
        body = b"\x08" + bytes((command_type,)) + tag + b"\x80\x80\x02" + unknown
        assert decode(body, 3, len(body)) == (len(unknown), 6)
        with pytest.raises(ProtocolViolation):
            fed(connected_decoder(), (len(body) + 4).to_bytes(4, "big") + len(body).to_bytes(4, "big") + body)
    stranger = Decoder()
    connect = pb.CommandConnect(client_version="c", auth_data=b"x" * 60_000)
    assert len(fed(stranger, frame(pb.BaseCommand(type=pb.BaseCommand.CONNECT, connect=connect)))) == 1


def test_a_message_with_any_number_of_properties_is_accepted() -> None:
    """Apache Pulsar limits the metadata of a message by its bytes alone, and clients resend a refused message."""
    pairs = metadata(properties=[pb.KeyValue(key=f"key-{index}", value="v") for index in range(20_000)])
    nested = metadata(
        encryption_keys=[pb.EncryptionKeys(key="k", value=b"", metadata=[pb.KeyValue(key="k", value="")] * 4000)]
    )
    sent = [message(each, b"") for each in (pairs, nested)]
    (run,) = fed(connected_decoder(), b"".join(frame(send(1, index), each) for index, each in enumerate(sent)))
    assert isinstance(run, SendRun)
    assert (run.sequence_ids, run.payloads) == ([0, 1], sent)
