"""Entries of a few bytes that become millions of messages when they are opened: memory, and the thread."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable

import pytest
from tests.unit.compaction.entries import CODECS, Said, batch, framed
from tests.unit.compaction.test_compactor import CompactionStack

from pybroker.compaction.compactor import THREAD_COST_BYTES
from pybroker.compaction.messages import (
    MAX_BATCH_BYTES,
    MAX_BATCH_MESSAGES,
    WHOLE,
    Batch,
    opening_cost,
    read_entry,
    with_messages,
)
from pybroker.compaction.survivors import Survivors
from pybroker.model.position import Position
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.compression import DamagedPayload, compress, decompress

LEAST = b"\0\0\0\2\x18\0"
MIB = 1 << 20


def bomb(count: int, claimed_bytes: int | None = None) -> bytes:
    """`count` empty messages without a key, in a few bytes."""
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, compression=pb.ZSTD)
    metadata.num_messages_in_batch = count
    metadata.uncompressed_size = len(LEAST) * count if claimed_bytes is None else claimed_bytes
    return framed(metadata, compress(pb.ZSTD, LEAST * count))


def peak_bytes(act: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_millions_of_messages_in_a_few_kilobytes_are_left_as_they_are_without_being_looked_at() -> None:
    entry = bomb(5_000_000)
    assert len(entry) < 4096
    assert peak_bytes(lambda: read_entry(entry)) < MIB
    assert read_entry(entry) is WHOLE
    assert opening_cost(entry) == len(entry)


def test_what_is_opened_takes_its_size_before_compression_and_a_few_bytes_for_each_message() -> None:
    count = 30_000
    entry = bomb(count)
    survivors = Survivors(keeps_messages_without_key=False)

    def both_passes() -> None:
        survivors.note(Position(1, 0), entry)
        assert survivors.kept(Position(1, 0), entry) is None

    assert peak_bytes(both_passes) < 3 * len(LEAST) * count + 16 * count + MIB
    assert survivors.removed_messages == count


def test_a_batch_of_which_some_is_left_is_written_again_in_little_memory() -> None:
    count = 100_000
    entry = bomb(count)
    content = read_entry(entry)
    assert isinstance(content, Batch)
    kept = [index % 2 == 0 for index in range(count)]
    assert peak_bytes(lambda: with_messages(entry, content, kept)) < 8 * len(content.payload) + MIB


def test_what_cannot_hold_its_messages_is_not_opened() -> None:
    for entry in (bomb(100, 599), bomb(1, MAX_BATCH_BYTES + 1), bomb(MAX_BATCH_MESSAGES + 1)):
        assert read_entry(entry) is WHOLE
        assert opening_cost(entry) == len(entry)


@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec not in (pb.NONE, pb.ZSTD)])
def test_no_room_is_made_for_what_a_codec_cannot_reach(codec: pb.CompressionType) -> None:
    def refused() -> None:
        with pytest.raises(DamagedPayload, match="cannot decompress"):
            decompress(codec, b"x" * 100, 60 * MIB)

    assert peak_bytes(refused) < MIB


def test_the_cost_is_what_an_entry_becomes_and_not_what_it_is() -> None:
    small = batch([Said("a", b"1"), Said("b", b"2")], pb.LZ4)
    assert opening_cost(small) < THREAD_COST_BYTES
    assert len(bomb(10_000)) < 1000
    assert opening_cost(bomb(10_000)) > THREAD_COST_BYTES
    one_large = batch([Said("a", b"\0" * MIB)], pb.ZSTD)
    assert len(one_large) < 1000
    assert opening_cost(one_large) > MIB
    assert opening_cost(b"") == 0


class WatchedSurvivors(Survivors):
    """Records the threads of calls."""

    def __init__(self) -> None:
        super().__init__(keeps_messages_without_key=False)
        self.threads: dict[int, set[int]] = {}

    def note(self, position: Position, entry: bytes) -> None:
        self.threads.setdefault(len(entry), set()).add(threading.get_ident())
        super().note(position, entry)

    def kept(self, position: Position, entry: bytes) -> bytes | None:
        self.threads.setdefault(len(entry), set()).add(threading.get_ident())
        return super().kept(position, entry)


async def test_what_becomes_large_is_opened_in_a_thread_however_small_it_is() -> None:
    stack = CompactionStack()
    await stack.open()
    small, grown = batch([Said("a", b"1")]), bomb(20_000)
    await stack.publish(small, grown, small)
    compactor = stack.compactor()
    watched = compactor._survivors = WatchedSurvivors()
    await compactor.run(stack.ledger.last_confirmed)
    assert watched.threads[len(small)] == {threading.get_ident()}
    assert threading.get_ident() not in watched.threads[len(grown)]
