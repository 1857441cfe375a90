"""Processor time of the steps that the compiled core of `pybroker.wire` replaces, compiled and in pure Python.

python -m benchmarks.wire_core      microseconds per message, the best of 5 alternating rounds, without a broker
"""

from __future__ import annotations

import struct
import sys
import timeit
from collections.abc import Callable
from functools import partial

from crc32c import crc32c

from pybroker.bookkeeper.protocol.entry_format import DigestType, EntryFormat
from pybroker.bookkeeper.protocol.frames import AnswerReader
from pybroker.wire import entry_columns, entry_metadata, replies
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.commands import Decoder
from pybroker.wire.core import COMPILED, Core, FrameScanner

ROUNDS = 5
ROUND_S = 0.05
RUN = 50
Case = tuple[str, int, Callable[[], object], Callable[[], object]]
"""Name, messages per call, the compiled call, and the Python call."""


def framed(command: pb.BaseCommand, message: bytes = b"") -> bytes:
    body = command.SerializeToString()
    return struct.pack(">II", 4 + len(body) + len(message), len(body)) + body + message


def entry_of(size_bytes: int, count: int = 0) -> bytes:
    metadata = pb.MessageMetadata(
        producer_name="standalone-0-1", sequence_id=7, publish_time=1_700_000_000_000, partition_key="customer-17"
    )
    if count:
        metadata.num_messages_in_batch = count
        metadata.uncompressed_size = size_bytes
    encoded = metadata.SerializeToString()
    body = struct.pack(">I", len(encoded)) + encoded + bytes(size_bytes)
    return struct.pack(">HI", 0x0E01, crc32c(body)) + body


def sends(entry: bytes, count: int) -> bytes:
    commands = [pb.CommandSend(producer_id=1, sequence_id=1000 + index) for index in range(count)]
    return b"".join(framed(pb.BaseCommand(type=pb.BaseCommand.SEND, send=each), entry) for each in commands)


def acks(count: int) -> bytes:
    commands = [
        pb.CommandAck(
            consumer_id=1,
            ack_type=pb.CommandAck.Individual,
            message_id=[pb.MessageIdData(ledgerId=70_000, entryId=1000 + index)],
        )
        for index in range(count)
    ]
    return b"".join(framed(pb.BaseCommand(type=pb.BaseCommand.ACK, ack=each)) for each in commands)


def decoding(scanner: FrameScanner | None, stream: bytes) -> Callable[[], object]:
    decoder = Decoder(scanner)
    decoder.accept_messages(5 << 20, 1000, 1000)
    return partial(decoder.feed, stream)


def joined(encode: Callable[..., tuple[list[bytes], int, int]], entries: list[bytes]) -> bytes:
    return b"".join(encode(1, 70_000, range(1000, 1000 + len(entries)), entries, None, None, -1, -1)[0])


def each_of(decide: Callable[[bytes], int], entries: list[bytes]) -> list[int]:
    return [decide(entry) for entry in entries]


def cases(compiled: Core) -> list[Case]:
    found: list[Case] = []
    for name, count, stream in (
        ("SEND, 1 KiB", RUN, sends(entry_of(1024), RUN)),
        ("SEND, 100 bytes", RUN, sends(entry_of(100), RUN)),
        ("SEND, 1 KiB, alone in its read", 1, sends(entry_of(1024), 1)),
        ("SEND of a batch of 1 KiB", RUN, sends(entry_of(1024, 10), RUN)),
        ("SEND of a batch of 100 KiB", 1, sends(entry_of(100 * 1024, 100), 1)),
        ("ACK", RUN, acks(RUN)),
    ):
        found.append((name, count, decoding(compiled, stream), decoding(None, stream)))
    ids = list(range(1000, 1000 + RUN))
    receipts = (1, ids, [0] * RUN, 70_000, 1000)
    entries = [entry_of(1024)] * RUN
    found += [
        (
            "SEND_RECEIPT",
            RUN,
            partial(compiled.send_receipts, *receipts),
            partial(replies.python_send_receipts, *receipts),
        ),
        (
            "MESSAGE, 1 KiB, joined",
            RUN,
            partial(joined, compiled.messages, entries),
            partial(joined, replies.python_messages, entries),
        ),
    ]
    for name, column, decide in (
        ("hash of the sticky key", compiled.key_hashes, entry_columns.entry_key_hash),
        ("delivery time", compiled.deliver_at_times, entry_metadata.deliver_at_ms),
        ("number of messages", compiled.message_counts, entry_metadata.entry_message_count),
    ):
        found.append((name, RUN, partial(column, decide, entries), partial(each_of, decide, entries)))
    formats = [EntryFormat(7, DigestType.CRC32C, b"", each) for each in (compiled, None)]
    add, stored = (9, 8, 1 << 20, entries[0]), formats[1].pack(9, 8, 1 << 20, entries[0])
    answers = b"".join(struct.pack(">IIiqq", 24, 0x02010000, 0, 7, index) for index in range(RUN))
    one, other = (AnswerReader(1 << 20, each).feed for each in (compiled, None))
    found += [
        ("BookKeeper: ADD, 1 KiB", 1, partial(formats[0].pack_add, *add), partial(formats[1].pack_add, *add)),
        ("BookKeeper: entry, 1 KiB", 1, partial(formats[0].unpack, stored, 9), partial(formats[1].unpack, stored, 9)),
        ("BookKeeper: answer to ADD", RUN, partial(one, answers), partial(other, answers)),
    ]
    return found


def main() -> int:
    if COMPILED is None:
        print("The core of pybroker.wire is not compiled", file=sys.stderr)
        return 1
    print(f"{'':34}  compiled    Python   ratio   (microseconds per message)")
    for name, count, compiled, python in cases(COMPILED):
        best: dict[Callable[[], object], float] = {}
        for _ in range(ROUNDS):
            for call in (compiled, python):
                timer = timeit.Timer(call)
                calls = max(1, int(ROUND_S / max(timer.timeit(1), 1e-7)))
                took_us = timer.timeit(calls) / calls / count * 1e6
                best[call] = min(took_us, best.get(call, took_us))
        print(f"{name:34}  {best[compiled]:8.3f}  {best[python]:8.3f}  {best[compiled] / best[python]:6.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
