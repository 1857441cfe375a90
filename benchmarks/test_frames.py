"""The load generator's frames comply with the protocol; needs no broker."""

import struct

import crc32c
import pytest

from benchmarks import frames
from pybroker.wire import pulsar_api_pb2 as pb


def sends_of(block: frames.SendBlock) -> list[pb.CommandSend]:
    found = []
    for start in range(0, len(block.buffer), block.frame_bytes):
        frame = bytes(block.buffer[start : start + block.frame_bytes])
        total, size = struct.unpack_from(">II", frame)
        assert total == block.frame_bytes - 4
        assert frame[8 + size : 10 + size] == frames.MAGIC
        tail = frame[10 + size :]
        assert int.from_bytes(tail[:4], "big") == crc32c.crc32c(tail[4:])
        found.append(pb.BaseCommand.FromString(frame[8 : 8 + size]).send)
    return found


@pytest.mark.parametrize("blocks", [1, 2, 129])
def test_a_block_carries_the_sequence_ids_that_follow(blocks: int) -> None:
    block = frames.SendBlock(3, frames.message_tail("p", b"payload"), frame_count=128)
    for _ in range(blocks - 1):
        block.advance()
    first = frames.FIRST_SEQUENCE_ID + (blocks - 1) * 128
    sends = sends_of(block)
    assert [send.sequence_id for send in sends] == list(range(first, first + 128))
    assert {send.producer_id for send in sends} == {3}


def test_a_batch_carries_its_first_and_its_last_sequence_id() -> None:
    block = frames.SendBlock(1, frames.batch_tail("p", b"x" * 10, 100), frame_count=1, messages_per_entry=100)
    block.advance()
    (send,) = sends_of(block)
    first = frames.FIRST_SEQUENCE_ID + 100
    assert (send.sequence_id, send.highest_sequence_id, send.num_messages) == (first, first + 99, 100)


def test_blocks_start_again_before_the_sequence_id_would_need_a_fifth_byte() -> None:
    block = frames.SendBlock(1, frames.message_tail("p", b""), frame_count=128)
    block.first_sequence_id = frames.LAST_SEQUENCE_ID - 130
    block.advance()
    assert sends_of(block)[0].sequence_id == frames.FIRST_SEQUENCE_ID


def test_received_bytes_are_cut_into_frames_whatever_their_pieces() -> None:
    receipt = pb.CommandSendReceipt(producer_id=1, sequence_id=7, message_id=pb.MessageIdData(ledgerId=1, entryId=2))
    stream = frames.encode_command(pb.BaseCommand(type=pb.BaseCommand.SEND_RECEIPT, send_receipt=receipt)) + frames.PONG
    walker = frames.FrameWalker(capacity_bytes=16)
    commands = []
    for byte in stream * 3:
        walker.space()[0] = byte
        found = walker.frames(1)
        commands += [walker.decode(start) for _, start, _ in found]
        if found:
            walker.consumed(found[-1][2])
    assert [command.type for command in commands] == [pb.BaseCommand.SEND_RECEIPT, pb.BaseCommand.PONG] * 3
    assert commands[0].send_receipt == receipt


def test_an_ack_names_the_message_that_was_received() -> None:
    identity = pb.MessageIdData(ledgerId=300, entryId=70_000, partition=-1)
    message = pb.CommandMessage(consumer_id=5, message_id=identity, redelivery_count=2)
    command = pb.BaseCommand(type=pb.BaseCommand.MESSAGE, message=message)
    buffer = bytearray(frames.encode_command(command))
    consumer_id, field = frames.message_id_field(buffer, 8)
    ack = pb.BaseCommand.FromString(frames.encode_ack(consumer_id, [field, field])[8:]).ack
    assert (ack.consumer_id, ack.ack_type, list(ack.message_id)) == (5, pb.CommandAck.Individual, [identity, identity])
