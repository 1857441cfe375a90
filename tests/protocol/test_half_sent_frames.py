"""Clients that send half of a frame: what that may take of memory, and that it is given back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.support.async_client import BinaryPort, binary_port
from tests.support.memory_broker import MemoryBroker, memory_broker
from tests.support.raw_client import encode, frame

from pybroker.memory.broker_memory import Memory
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.commands import MAX_UNAUTHENTICATED_FRAME_BYTES

LIMIT = 256 * 1024
CONNECT = frame(encode(pb.BaseCommand.CONNECT, client_version="test", protocol_version=21))
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    async with memory_broker(max_frame_bytes_before_connect=LIMIT) as running:
        yield running


@pytest.fixture
async def port(broker: MemoryBroker) -> AsyncIterator[BinaryPort]:
    async with binary_port(broker) as running:
        yield running


def half(size_bytes: int, total: int = MAX_UNAUTHENTICATED_FRAME_BYTES) -> bytes:
    """The first bytes of a frame of `total`."""
    return (total.to_bytes(4, "big") + (total - 4).to_bytes(4, "big")).ljust(size_bytes, b"x")


async def connections(port: BinaryPort, count: int) -> list[Stream]:
    return [await asyncio.open_connection("127.0.0.1", port.port) for _ in range(count)]


def memory_of(broker: MemoryBroker) -> Memory:
    return broker.service.runtime.memory


async def test_frame_that_is_only_announced_takes_no_memory(broker: MemoryBroker, port: BinaryPort) -> None:
    streams = await connections(port, 20)
    for _, writer in streams:
        writer.write(half(16))
    frames = memory_of(broker).frames
    await broker.until(lambda: frames.used_bytes == 20 * 16)
    for _, writer in streams:
        writer.close()
    await broker.until(lambda: not frames.used_bytes)


async def test_half_sent_frames_before_connect_are_bounded_and_the_longest_incomplete_makes_way(
    broker: MemoryBroker, port: BinaryPort
) -> None:
    frames, size = memory_of(broker).frames, 64 * 1024
    streams = await connections(port, 12)
    for index, (_, writer) in enumerate(streams):
        writer.write(half(size))
        await broker.until(lambda index=index: index >= 4 or frames.used_bytes >= (index + 1) * size)  # type: ignore[misc]
    for reader, _ in streams[:8]:
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await asyncio.wait_for(reader.readexactly(1), 10)
    assert frames.used_bytes <= LIMIT
    assert broker.service.runtime.stats.connections_displaced >= 8
    # A client whose CONNECT comes in two pieces is served meanwhile.
    [(reader, writer)] = await connections(port, 1)
    writer.write(CONNECT[:10])
    await broker.until(lambda: any(each._decoder.held_bytes == 10 for each in port.connections))
    writer.write(CONNECT[10:])
    assert await asyncio.wait_for(reader.readexactly(4), 10)
    for _, each in (*streams, (reader, writer)):
        each.close()
    await broker.until(lambda: not frames.used_bytes)


async def test_memory_of_a_half_sent_message_is_counted_and_given_back_with_its_connection(
    broker: MemoryBroker, port: BinaryPort
) -> None:
    frames = memory_of(broker).frames
    [(reader, writer)] = await connections(port, 1)
    writer.write(CONNECT)
    await reader.readexactly(4)
    writer.write(half(2_000_000, 5_000_000))
    await broker.until(lambda: frames.used_bytes >= 2_000_000)
    [connection] = port.connections
    assert frames.used_bytes < 2_300_000
    writer.close()
    await broker.until(lambda: not frames.used_bytes)
    # Other objects may refer to the connection for long.
    assert connection._decoder.held_bytes == 0


async def test_announcement_of_more_than_a_token_needs_ends_the_connection(port: BinaryPort) -> None:
    [(reader, writer)] = await connections(port, 1)
    writer.write(half(8, MAX_UNAUTHENTICATED_FRAME_BYTES + 1))
    assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()
