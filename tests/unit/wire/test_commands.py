"""Frames become events: joined events, refusals, errors that close the connection, and memory."""

import pytest
from tests.unit.wire.support import (
    MASK_64,
    MAX_BATCH_MESSAGES,
    MAX_FIELDS,
    MAX_MESSAGE_BYTES,
    ack,
    connected_decoder,
    expected,
    flattened,
    flow,
    frame,
    message,
    metadata,
    send,
)

from pybroker.errors import ChecksumError, ProtocolViolation
from pybroker.model.events import Ack, Flow, SendRefused, SendRun
from pybroker.model.txn_id import TxnId
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.commands import (
    FRAME_PADDING_BYTES,
    LARGE_MESSAGE_BYTES,
    LARGE_RECEIVE_BYTES,
    MAX_SHARED_FRAME_BYTES,
    MAX_SMALL_COMMANDS,
    MAX_UNAUTHENTICATED_FRAME_BYTES,
    OWN_BUFFER_BYTES,
    PIECE_BYTES,
    RECEIVE_BYTES,
    SHARED_BUFFER_BYTES,
    UNAUTHENTICATED_PIECE_BYTES,
    Decoder,
    Event,
)

SOUND = message(metadata())
PING = frame(pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing()))


def feed_byte_by_byte(decoder: Decoder, data: bytes) -> None:
    for byte in data:
        decoder.feed(bytes((byte,)))


def test_neighbouring_sends_of_a_producer_are_one_run() -> None:
    stream = b"".join(frame(send(7, sequence_id), SOUND) for sequence_id in (1, 2, 300))
    (run,) = connected_decoder().feed(stream)
    assert isinstance(run, SendRun)
    assert (run.producer_id, run.sequence_ids, run.size_bytes) == (7, [1, 2, 300], 3 * len(SOUND))


def test_a_run_knows_how_many_of_its_messages_are_chunks() -> None:
    sends = [
        send(1, 0),
        send(1, 1, is_chunk=True),
        send(1, 2, is_chunk=True, num_messages=1),
        send(1, 3, is_chunk=False),
    ]
    (run,) = connected_decoder().feed(b"".join(frame(each, message(metadata())) for each in sends))
    assert isinstance(run, SendRun)
    assert (run.sequence_ids, run.chunk_count) == ([0, 1, 2, 3], 2)


def test_a_run_ends_with_its_producer() -> None:
    stream = b"".join(frame(send(producer_id, 1), SOUND) for producer_id in (7, 7, 8, 7))
    runs = connected_decoder().feed(stream)
    assert [(run.producer_id, len(run.payloads)) for run in runs if isinstance(run, SendRun)] == [
        (7, 2),
        (8, 1),
        (7, 1),
    ]


def test_events_keep_the_order_of_their_commands() -> None:
    parts = [
        frame(ack(1, (5, 1))),
        frame(send(1, 1), message(metadata(), checksum="bad")),
        frame(ack(1, (5, 2))),
        frame(send(1, 2), SOUND),
        frame(flow(1, 10)),
        frame(send(1, 3), SOUND),
        PING,
        frame(ack(1, (5, 3))),
    ]
    stream = b"".join(parts)
    events = connected_decoder().feed(stream)
    assert [type(event) for event in events] == [Ack, SendRefused, Ack, SendRun, Flow, SendRun, pb.BaseCommand, Ack]
    assert flattened(events) == expected(stream)


@pytest.mark.parametrize(
    "sequence_id", [0, 127, 128, 255, (1 << 14) - 1, 1 << 14, (1 << 21) - 1, 1 << 21, (1 << 28) - 1, 1 << 28, MASK_64]
)
@pytest.mark.parametrize("producer_id", [0, 127, 128, MASK_64])
def test_ids_of_every_length_are_read(producer_id: int, sequence_id: int) -> None:
    (run,) = connected_decoder().feed(frame(send(producer_id, sequence_id), SOUND))
    assert isinstance(run, SendRun)
    assert (run.producer_id, run.sequence_ids) == (producer_id, [sequence_id])


def test_a_message_is_kept_exactly_as_it_was_sent() -> None:
    for checksum in ("good", "none"):
        sent = message(metadata(num_messages_in_batch=12), b"payload with an X" * 5, checksum)
        (run,) = connected_decoder().feed(frame(send(1, 1, num_messages=12, highest_sequence_id=12), sent))
        assert isinstance(run, SendRun)
        assert (run.payloads, run.message_counts, run.highest_sequence_ids) == ([sent], [12], [12])


def test_the_count_of_one_message_does_not_leak_into_the_next() -> None:
    counts = [1, 3, 1, 1, 2, 1]
    parts = [
        frame(
            send(1, i), message(metadata(num_messages_in_batch=count) if count > 1 else metadata(), b"X" * (6 * count))
        )
        for i, count in enumerate(counts)
    ]
    (run,) = connected_decoder().feed(b"".join(parts))
    assert isinstance(run, SendRun)
    assert run.message_counts == counts


@pytest.mark.parametrize(
    ("fields", "checksum", "error"),
    [
        ({}, "bad", ChecksumError),
        ({"txnid_least_bits": 1}, "bad", ChecksumError),
    ],
)
def test_a_send_that_cannot_be_taken_is_answered_and_the_next_one_is_taken(
    fields: dict[str, int], checksum: str, error: type[Exception]
) -> None:
    refused, run = connected_decoder().feed(
        frame(send(1, 5, **fields), message(metadata(), checksum=checksum)) + frame(send(1, 6), SOUND)
    )
    assert isinstance(refused, SendRefused)
    assert (refused.producer_id, refused.sequence_id, type(refused.error)) == (1, 5, error)
    assert isinstance(run, SendRun)
    assert run.sequence_ids == [6]


def test_messages_are_joined_with_those_of_their_own_transaction_only() -> None:
    fields = [
        {},
        {"txnid_least_bits": 1},
        {"txnid_least_bits": 1},
        {"txnid_most_bits": 1},
        {},
        {},
        {"txnid_most_bits": 1},
    ]
    stream = b"".join(frame(send(1, index, **each), SOUND) for index, each in enumerate(fields))
    runs = connected_decoder().feed(stream)
    assert all(isinstance(run, SendRun) and run.producer_id == 1 for run in runs)
    assert [(run.txn, run.sequence_ids) for run in runs if isinstance(run, SendRun)] == [
        (None, [0]),
        (TxnId(0, 1), [1, 2]),
        (TxnId(1, 0), [3]),
        (None, [4, 5]),
        (TxnId(1, 0), [6]),
    ]


def test_acknowledgements_that_ask_for_no_receipt_are_joined() -> None:
    stream = b"".join(frame(ack(1, *positions)) for positions in ([(5, 1)], [(5, 2), (6, 0)], [(6, 1)], [(5, 9)]))
    (joined,) = connected_decoder().feed(stream)
    assert isinstance(joined, Ack)
    assert joined.groups == [(5, [1, 2]), (6, [0, 1]), (5, [9])]
    assert (joined.request_id, joined.is_cumulative, joined.txn) == (-1, False, None)


@pytest.mark.parametrize(
    "alone",
    [
        {"request_id": 0},
        {"request_id": MASK_64},
        {"ack_type": pb.CommandAck.Cumulative},
        {"txnid_most_bits": 1},
        {"validation_error": pb.CommandAck.ChecksumMismatch},
    ],
)
def test_other_acknowledgements_stay_alone(alone: dict[str, int]) -> None:
    stream = frame(ack(1, (5, 1))) + frame(ack(1, (5, 2), **alone)) + frame(ack(1, (5, 3))) + frame(ack(2, (5, 4)))
    events = connected_decoder().feed(stream)
    assert len(events) == 4
    assert flattened(events) == expected(stream)


def test_part_of_a_batch_is_acknowledged_apart_from_whole_entries() -> None:
    command = ack(1, (5, 1))
    command.ack.message_id.add(ledgerId=5, entryId=2, ack_set=[-1, 3], batch_size=70)
    command.ack.message_id.add(ledgerId=5, entryId=3, ack_set=[1], batch_size=-4)
    (event,) = connected_decoder().feed(frame(command))
    assert isinstance(event, Ack)
    assert event.groups == [(5, [1])]
    assert [(p.entry_id, p.ack_set, p.batch_size) for p in event.partials] == [(2, [MASK_64, 3], 70), (3, [1], 0)]


# Commands that protobuf accepts and no client writes: 06 is SEND, 0a ACK, 0b FLOW.
ONE_FLOW = "5a 04 08 01 10 0a"
ONE_ACK = "52 0a 08 01 10 00 1a 04 08 05 10 07"
ONE_SEND = "32 04 08 01 10 09"


@pytest.mark.parametrize(
    ("layout", "usual"),
    [
        (f"{ONE_FLOW} 08 0b", flow(1, 10)),
        (f"08 0b {ONE_FLOW} 98 3f 01", flow(1, 10)),
        (f"88 00 0b {ONE_FLOW}", flow(1, 10)),
        ("08 0b 5a 05 08 01 90 00 0a", flow(1, 10)),
        ("08 0b 5a 84 00 08 01 10 0a", flow(1, 10)),
        ("08 0b 5a 02 08 01 5a 02 10 0a", flow(1, 10)),
        ("08 0b 5a 08 08 01 10 8a 80 80 80 10", flow(1, 10)),
        ("08 0b 5a 0a 08 01 a3 06 08 05 a4 06 10 0a", flow(1, 10)),
        (f"{ONE_ACK} 08 0a", ack(1, (5, 7))),
        (f"08 0a {ONE_ACK} 98 3f 01", ack(1, (5, 7))),
        ("08 0a 52 0b 08 01 90 00 00 1a 04 08 05 10 07", ack(1, (5, 7))),
        ("08 0a 52 0b 08 01 10 00 1a 05 08 05 90 00 07", ack(1, (5, 7))),
        ("08 0a 52 0c 08 01 10 00 10 09 1a 04 08 05 10 07", ack(1, (5, 7))),
        ("08 0a 52 0e 08 01 10 00 30 01 30 00 1a 04 08 05 10 07", ack(1, (5, 7))),
        (f"{ONE_SEND} 08 06", send(1, 9)),
        (f"08 06 {ONE_SEND} 98 3f 01", send(1, 9)),
        ("08 06 32 05 08 01 10 89 00", send(1, 9)),
        ("08 06 32 05 08 81 00 10 09", send(1, 9)),
        ("08 06 32 04 10 09 08 01", send(1, 9)),
        ("08 06 32 08 08 01 10 09 40 01 40 00", send(1, 9)),
        ("08 06 32 08 08 01 10 09 a3 06 a4 06", send(1, 9)),
    ],
)
def test_a_command_laid_out_as_no_client_does_is_read_as_protobuf_reads_it(layout: str, usual: pb.BaseCommand) -> None:
    tail = SOUND if usual.type == pb.BaseCommand.SEND else b""
    unusual = frame(bytes.fromhex(layout), tail)
    assert flattened(connected_decoder().feed(unusual + PING)) == expected(frame(usual, tail) + PING)


def test_a_packed_ack_set_is_read() -> None:
    command = bytes.fromhex("08 0a 52 10 08 01 10 00 1a 0a 08 05 10 07 2a 02 05 01 30 46")
    (event,) = connected_decoder().feed(frame(command))
    assert isinstance(event, Ack)
    assert [(p.ack_set, p.batch_size) for p in event.partials] == [([5, 1], 70)]


MALFORMED = {
    "no command": frame(b""),
    "unknown command": frame(b"\x08\x63"),
    "command without its message": frame(b"\x08\x04"),
    "SEND without its message": frame(b"\x08\x06", SOUND),
    "ACK without its message": frame(b"\x08\x0a") + PING,
    "message without a required field": frame(b"\x08\x0c\x62\x02\x08\x01"),
    "command that is cut": frame(flow(1, 10).SerializeToString()[:-1]),
    "command that is no protobuf": frame(b"\xff" * 20),
    "command longer than its frame": b"\0\0\0\x05\0\0\0\x02" + b"\x08\x12\0\0",
    "frame shorter than its own size": b"\0\0\0\x03\0\0\0\0",
    "SEND without a message": frame(send(1, 1)),
    "SEND with half a message": frame(send(1, 1), SOUND[:9]),
    "SEND without a producer id": frame(b"\x08\x06\x32\x02\x10\x01", SOUND),
    "SEND without a sequence id": frame(b"\x08\x06\x32\x02\x08\x01", SOUND),
    "metadata longer than its frame": frame(send(1, 1), b"\0\0\xff\xff" + b"x" * 20),
    "metadata of a negative count": frame(send(1, 1), message(metadata(num_messages_in_batch=-1))),
    "metadata cut inside a field": frame(send(1, 1), message(b"\x0a\x01pX\xff")),
    "entry of a broker": frame(send(1, 1), b"\x0e\x02\0\0\0\x02\x08\x01" + SOUND),
    "FLOW of no permits": frame(flow(1, 0)),
    "FLOW without permits": frame(b"\x08\x0b\x5a\x02\x08\x01"),
    "ACK without a consumer id": frame(b"\x08\x0a\x52\x02\x10\x00"),
    "ACK of an unknown type": frame(b"\x08\x0a\x52\x04\x08\x01\x10\x02"),
    "ACK without an entry id": frame(b"\x08\x0a\x52\x08\x08\x01\x10\x00\x1a\x02\x08\x05"),
    "ACK with a message id longer than itself": frame(b"\x08\x0a\x52\x06\x08\x01\x10\x00\x1a\x7f"),
    "ACK with an ack set extends beyond the end of its message id": frame(
        b"\x08\x0a\x52\x0c\x08\x01\x10\x00\x1a\x06\x08\x05\x10\x07\x2a\x7f"
    ),
    "text that is not UTF-8": frame(b"\x08\x17\xba\x01\x06\x0a\x02\xff\xfe\x10\x01"),
    "text inside a list that is not UTF-8": frame(
        b"\x08\x05\x2a\x0f\x0a\x01t\x10\x01\x18\x01\x32\x06\x0a\x01k\x12\x01\xff"
    ),
    "field of number zero": frame(b"\x08\x0b\x5a\x06\x08\x01\x10\x01\x00\x01"),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_what_no_client_may_send_is_a_violation_however_it_arrives(what: str) -> None:
    with pytest.raises(ProtocolViolation):
        connected_decoder().feed(MALFORMED[what])
    decoder = connected_decoder()
    with pytest.raises(ProtocolViolation):
        feed_byte_by_byte(decoder, MALFORMED[what])


def test_what_came_before_a_violation_in_an_earlier_read_is_not_lost() -> None:
    decoder = connected_decoder()
    assert len(decoder.feed(frame(send(1, 1), SOUND))) == 1
    with pytest.raises(ProtocolViolation):
        decoder.feed(frame(b"\xff"))


def frame_of(total: int) -> bytes:
    """A SEND with `total` bytes behind its first four."""
    command = send(1, 1)
    overhead = 4 + command.ByteSize() + len(message(metadata(), b"", "none"))
    return frame(command, message(metadata(), b"\0" * (total - overhead), "none"))


def test_before_connect_a_frame_may_be_as_long_as_a_large_token() -> None:
    assert len(Decoder().feed(frame_of(MAX_UNAUTHENTICATED_FRAME_BYTES))) == 1
    for data in (
        frame_of(MAX_UNAUTHENTICATED_FRAME_BYTES + 1),
        (MAX_UNAUTHENTICATED_FRAME_BYTES + 1).to_bytes(4, "big"),
    ):
        with pytest.raises(ProtocolViolation, match="longer than the limit"):
            Decoder().feed(data)


def test_once_connected_a_frame_may_be_as_long_as_a_message_and_some() -> None:
    limit = MAX_MESSAGE_BYTES + FRAME_PADDING_BYTES - 4  # `total` excludes its own four bytes
    assert len(connected_decoder().feed(frame_of(limit))) == 1
    for data in (frame_of(limit + 1), (limit + 1).to_bytes(4, "big")):
        with pytest.raises(ProtocolViolation, match="longer than the limit"):
            connected_decoder().feed(data)


def test_held_data_is_decoded_by_the_next_feed() -> None:
    data = frame_of(60) + frame_of(70)
    decoder = connected_decoder()
    assert decoder.feed(data[:5]) == []
    shared = memoryview(bytearray(SHARED_BUFFER_BYTES))
    for part in (data[5:80], data[80:]):
        decoder.buffer(shared)[: len(part)] = part
        decoder.hold(shared, len(part))
    assert decoder.has_more
    assert decoder.held_bytes == len(data)
    assert flattened(decoder.feed(b"")) == expected(data)
    assert not decoder.has_more
    assert not decoder.held_bytes


def test_a_large_frame_gets_its_own_buffer_and_a_small_one_does_not() -> None:
    data = frame_of(2 * OWN_BUFFER_BYTES)
    decoder = connected_decoder()
    assert decoder.feed(data[: OWN_BUFFER_BYTES - 100]) == []
    own = decoder.own_buffer()
    assert own is not None
    assert len(own) == len(data) - OWN_BUFFER_BYTES + 100
    own[:10] = data[OWN_BUFFER_BYTES - 100 :][:10]
    assert decoder.own_buffer_filled(10) == []
    own.release()
    rest = data[OWN_BUFFER_BYTES - 90 :]
    own = decoder.own_buffer()
    assert own is not None
    own[:] = rest
    events = decoder.own_buffer_filled(len(rest))
    assert flattened(events) == expected(data)
    assert decoder.own_buffer() is None
    decoder.feed(frame_of(OWN_BUFFER_BYTES)[:100])
    assert decoder.own_buffer() is None


def test_a_large_frame_may_be_fed_in_pieces_without_its_buffer_being_made_again() -> None:
    data = frame_of(3 * OWN_BUFFER_BYTES)
    decoder = connected_decoder()
    decoder.feed(data[:50])
    assert decoder.held_bytes == 50, "what was only announced takes no memory"
    for start in range(50, len(data) - 1000, 1000):
        assert decoder.feed(data[start : start + 1000]) == []
        assert decoder.held_bytes == len(data)
    fed = 50 + len(range(50, len(data) - 1000, 1000)) * 1000
    assert flattened(decoder.feed(data[fed:] + PING)) == expected(data + PING)


@pytest.mark.parametrize("is_connected", [True, False])
def test_memory_of_an_incomplete_frame_is_that_of_its_received_bytes(is_connected: bool) -> None:
    size = MAX_MESSAGE_BYTES if is_connected else MAX_UNAUTHENTICATED_FRAME_BYTES - 4
    decoder = connected_decoder() if is_connected else Decoder()
    piece = PIECE_BYTES if is_connected else UNAUTHENTICATED_PIECE_BYTES
    data = frame_of(size)
    for start in range(0, len(data) - 1, 3000):
        assert decoder.feed(data[start : min(start + 3000, len(data) - 1)]) == []
        assert decoder.held_bytes < start + 3000 + piece
    decoder.release()
    assert decoder.held_bytes == 0
    assert decoder.own_buffer() is None


def test_text_beyond_ascii_is_taken() -> None:
    lookup = pb.CommandLookupTopic(topic="persistent://public/default/ü", request_id=1)
    command = pb.BaseCommand(type=pb.BaseCommand.LOOKUP, lookupTopic=lookup)
    assert connected_decoder().feed(frame(command)) == [command]


def test_many_small_commands_are_decoded_in_parts() -> None:
    flow = pb.BaseCommand(
        type=pb.BaseCommand.FLOW, flow=pb.CommandFlow(consumer_id=1, messagePermits=1)
    ).SerializeToString()
    frame = len(flow).to_bytes(4, "big")
    data = ((len(flow) + 4).to_bytes(4, "big") + frame + flow) * (3 * MAX_SMALL_COMMANDS + 5)
    decoder = Decoder()
    decoder.accept_messages(MAX_MESSAGE_BYTES, MAX_BATCH_MESSAGES, MAX_FIELDS)
    counts = [len(decoder.feed(data))]
    while decoder.has_more:
        counts.append(len(decoder.feed(b"")))
    assert counts == [MAX_SMALL_COMMANDS] * 3 + [5]


def test_an_acknowledgement_that_only_looks_like_the_one_before_is_read_in_full() -> None:
    def ack(**message_id: int) -> bytes:
        command = pb.CommandAck(
            consumer_id=3,
            ack_type=pb.CommandAck.Individual,
            message_id=[pb.MessageIdData(**message_id)],  # type: ignore[arg-type]
        )
        body = pb.BaseCommand(type=pb.BaseCommand.ACK, ack=command).SerializeToString()
        return (len(body) + 4).to_bytes(4, "big") + len(body).to_bytes(4, "big") + body

    decoder = Decoder()
    decoder.accept_messages(MAX_MESSAGE_BYTES, MAX_BATCH_MESSAGES, MAX_FIELDS)
    ids = [(16, 16), (16, 17), (17, 16), (16, 300), (16, 301), (700, 5), (700, 6)]
    data = b"".join(ack(ledgerId=ledger_id, entryId=entry_id) for ledger_id, entry_id in ids)
    data += ack(ledgerId=700, entryId=7, batch_size=16) + ack(ledgerId=700, entryId=8)
    (event,) = decoder.feed(data)
    assert isinstance(event, Ack)
    acked = [(ledger_id, entry_id) for ledger_id, entry_ids in event.groups for entry_id in entry_ids]
    assert acked == [*ids, (700, 7), (700, 8)]


def test_small_commands_before_the_beginning_of_a_large_frame_leave_nothing_to_go_on_with() -> None:
    ping = pb.BaseCommand(
        type=pb.BaseCommand.FLOW, flow=pb.CommandFlow(consumer_id=1, messagePermits=1)
    ).SerializeToString()
    small = (len(ping) + 4).to_bytes(4, "big") + len(ping).to_bytes(4, "big") + ping
    decoder = Decoder()
    decoder.accept_messages(MAX_MESSAGE_BYTES, MAX_BATCH_MESSAGES, MAX_FIELDS)
    large = (OWN_BUFFER_BYTES + 1000).to_bytes(4, "big") + b"\0" * 100
    assert len(decoder.feed(small * MAX_SMALL_COMMANDS + large)) == MAX_SMALL_COMMANDS
    assert not decoder.has_more
    assert decoder.own_buffer() is not None


def test_the_sizes_of_an_incomplete_frame_are_judged_alike_however_it_is_cut() -> None:
    data = bytes.fromhex("0001001a0100000508129201")  # a command longer than its frame, of which few bytes have arrived
    for cut in range(len(data) + 1):
        decoder = Decoder()
        decoder.accept_messages(MAX_MESSAGE_BYTES, MAX_BATCH_MESSAGES, MAX_FIELDS)
        assert decoder.feed(data[:cut]) == []


# --- the shared receive buffer -----------------------------------------------------------------------------------------


def send_of(size_bytes: int, sequence_id: int = 1) -> bytes:
    return frame(send(7, sequence_id), message(metadata(), bytes(size_bytes)))


def receive(decoder: Decoder, shared: memoryview, data: bytes) -> list[Event]:
    """Deliver `data` in one read."""
    buffer = decoder.buffer(shared)
    assert len(buffer) >= len(data)
    buffer[: len(data)] = data
    return decoder.received(shared, len(data))


def test_connection_with_large_messages_reads_more_at_a_time() -> None:
    decoder, shared = connected_decoder(), memoryview(bytearray(SHARED_BUFFER_BYTES))
    assert len(decoder.buffer(shared)) == RECEIVE_BYTES
    (run,) = receive(decoder, shared, send_of(LARGE_MESSAGE_BYTES) * 2)
    assert isinstance(run, SendRun)
    assert len(run.payloads) == 2
    assert len(decoder.buffer(shared)) == LARGE_RECEIVE_BYTES
    receive(decoder, shared, send_of(100) * 2)
    assert len(decoder.buffer(shared)) == RECEIVE_BYTES


def test_frame_that_fits_is_completed_in_the_shared_buffer() -> None:
    decoder, shared = connected_decoder(), memoryview(bytearray(SHARED_BUFFER_BYTES))
    data = send_of(MAX_SHARED_FRAME_BYTES - 100)
    for start in range(0, len(data) - RECEIVE_BYTES, RECEIVE_BYTES):
        assert receive(decoder, shared, data[start : start + RECEIVE_BYTES]) == []
        assert decoder.holds_large_frame
        assert decoder.own_buffer() is None
        assert decoder.held_bytes == start + RECEIVE_BYTES
        shared[:] = bytes(len(shared))  # other connections receive into it
    assert flattened(receive(decoder, shared, data[decoder.held_bytes :])) == expected(data)
    assert not decoder.holds_large_frame
    assert not decoder.held_bytes


def test_frame_that_arrives_in_small_reads_gets_its_own_buffer() -> None:
    """Each read would copy the whole frame again."""
    decoder, shared = connected_decoder(), memoryview(bytearray(SHARED_BUFFER_BYTES))
    data = send_of(3 * RECEIVE_BYTES)
    receive(decoder, shared, data[:RECEIVE_BYTES])
    assert decoder.own_buffer() is None
    receive(decoder, shared, data[RECEIVE_BYTES : RECEIVE_BYTES + 1])
    own = decoder.own_buffer()
    assert own is not None
    assert len(own) == len(data) - RECEIVE_BYTES - 1


def test_whole_frames_that_wait_are_decoded_with_data_received_meanwhile() -> None:
    """TLS may deliver data after a pause."""
    decoder, shared = connected_decoder(), memoryview(bytearray(SHARED_BUFFER_BYTES))
    small = frame(flow(1, 1))
    waiting = (MAX_SHARED_FRAME_BYTES // len(small) + 2 * MAX_SMALL_COMMANDS) * small
    events = decoder.feed(waiting)
    assert decoder.has_more
    assert decoder.own_buffer() is None
    events += receive(decoder, shared, send_of(10))
    while decoder.has_more:
        events += decoder.feed(b"")
    assert flattened(events) == expected(waiting + send_of(10))


def test_memory_of_an_incomplete_frame_in_the_shared_buffer_is_counted() -> None:
    decoder, shared = connected_decoder(), memoryview(bytearray(SHARED_BUFFER_BYTES))
    receive(decoder, shared, send_of(50_000)[:OWN_BUFFER_BYTES])
    assert not decoder.holds_large_frame
    receive(decoder, shared, send_of(50_000)[OWN_BUFFER_BYTES : OWN_BUFFER_BYTES + 1])
    assert decoder.holds_large_frame
    decoder.release()
    assert not decoder.holds_large_frame
