"""Frames from a broker: the result does not depend on the chunks, and any bytes give events or an error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.client.frames import FrameReader, ReceivedEntry, read_event, send_head
from pybroker.errors import ProtocolViolation
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire import replies
from pybroker.wire.commands import Decoder

numbers = st.integers(0, (1 << 63) - 1)


def message_frame(
    consumer: int,
    ledger: int,
    entry: int,
    redeliveries: int,
    payload: bytes,
    ack_set: tuple[int, ...] = (),
    epoch: int = -1,
) -> bytes:
    bits: list[list[int] | None] | None = [[*ack_set]] if ack_set else None
    return b"".join(replies.messages(consumer, ledger, [entry], [payload], [redeliveries], bits, epoch, 3)[0])


words = st.lists(st.integers(0, (1 << 64) - 1), max_size=3).map(tuple)
epochs = st.integers(-1, (1 << 63) - 1)
entries = st.builds(
    ReceivedEntry, numbers, numbers, numbers, st.integers(0, 1000), st.binary(max_size=300), words, epochs
)


@given(st.lists(st.one_of(entries, st.just("ping")), max_size=8), st.lists(st.integers(1, 40), max_size=200))
def test_how_frames_are_cut_does_not_matter(sent: list[ReceivedEntry | str], cuts: list[int]) -> None:
    data = b"".join(replies.PING if each == "ping" else message_frame(*each) for each in sent)
    reader = FrameReader(read_event)
    found = []
    position = 0
    for size in [*cuts, len(data)]:
        found += reader.feed(data[position : position + size])
        position += size
    assert [each if isinstance(each, ReceivedEntry) else "ping" for each in found] == sent


@given(st.binary(max_size=200))
def test_any_bytes_give_events_or_a_refusal(data: bytes) -> None:
    reader = FrameReader(read_event)
    try:
        reader.feed(data)
        reader.feed(len(data).to_bytes(4, "big") + data)
    except ProtocolViolation:
        return


@given(st.binary(max_size=60), numbers, numbers)
def test_a_damaged_message_is_read_as_protobuf_reads_it_or_refused(tail: bytes, ledger: int, entry: int) -> None:
    """Unknown fields after the known ones are skipped."""
    command = pb.BaseCommand(type=pb.BaseCommand.MESSAGE)
    command.message.consumer_id = 1
    command.message.message_id.ledgerId = ledger
    command.message.message_id.entryId = entry
    own = command.message.SerializeToString() + tail
    body = b"\x08\x09\x4a" + bytes([len(own)]) + own
    data = (4 + len(body)).to_bytes(4, "big") + len(body).to_bytes(4, "big") + body
    try:
        (found,) = FrameReader(read_event).feed(data)
    except ProtocolViolation:
        return
    assert isinstance(found, ReceivedEntry)


def test_a_frame_over_the_limit_is_refused_before_it_is_kept() -> None:
    reader = FrameReader(read_event)
    with pytest.raises(ProtocolViolation, match="limit"):
        reader.feed((reader.max_frame_bytes + 1).to_bytes(4, "big"))


@given(st.integers(0, 300), numbers, st.integers(0, 1000), st.integers(1, 100), st.binary(max_size=50), st.booleans())
def test_the_broker_reads_what_the_client_sends(
    producer: int, sequence: int, more: int, count: int, payload: bytes, is_chunk: bool
) -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    if count > 1:
        metadata.num_messages_in_batch = count
    header = metadata.SerializeToString()
    entry = len(header).to_bytes(4, "big") + header + payload * count * 8
    head = send_head(producer, sequence, sequence + more, count, len(entry), is_chunk=is_chunk)
    size = int.from_bytes(head[4:8], "big")
    command = pb.BaseCommand.FromString(head[8 : 8 + size])
    assert int.from_bytes(head[:4], "big") == 4 + size + len(entry)
    assert (command.send.producer_id, command.send.sequence_id) == (producer, sequence)
    assert command.send.highest_sequence_id == (sequence + more if more else 0)
    assert command.send.num_messages == count
    assert command.send.is_chunk == is_chunk
    decoder = Decoder()
    decoder.accept_messages(1 << 20, 1000, 1000)
    assert len(decoder.feed(head + entry)) == 1
