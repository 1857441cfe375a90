"""Sends hostile frames over many connections at once, and counts what is answered.

A connection is used until the broker closes it, or for as many frames as were drawn for it; the next one takes its place. Some
never introduce themselves, some do not read what they are told. Bytes go out in pieces that end anywhere.
"""

import asyncio
import contextlib
from random import Random
from typing import Any
from urllib.parse import urlsplit

from tests.fuzz_server.frames import FIELDS, FrameMaker, frame
from tests.fuzz_server.tally import Tally
from tests.support.raw_client import all_frames

from pybroker.wire import pulsar_api_pb2 as pb

ANSWER_S = 20.0
"""After which an answer that is due is missing; a machine that is busy takes a while."""
PATIENCE_S = 2.0
"""How long to wait for an answer that need not come."""
PING = frame(pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing()).SerializeToString())
LAST_ANSWERS_S = 0.2
MOST_ON_A_CONNECTION = 300


class Budget:
    """How many frames or requests are still to be sent."""

    def __init__(self, count: int) -> None:
        self.left = count

    def take(self, most: int) -> int:
        taken = min(most, self.left)
        self.left -= taken
        return taken


async def attack_with_frames(url: str, count: int, seed: int, connections: int, tally: Tally) -> None:
    budget = Budget(count)
    parts = urlsplit(url)
    async with asyncio.TaskGroup() as group:
        for number in range(connections):
            group.create_task(_frames(parts.hostname or "", parts.port or 0, f"{seed} {number}", budget, tally))


async def _frames(host: str, port: int, seed: str, budget: Budget, tally: Tally) -> None:
    life = 0
    while budget.left:
        life += 1
        random = Random(f"{seed} {life}")
        count = budget.take(random.choice((3, 20, 60, MOST_ON_A_CONNECTION)))
        try:
            async with asyncio.timeout(ANSWER_S):
                reader, writer = await asyncio.open_connection(host, port)
        except (OSError, TimeoutError) as error:
            tally.fault(f"no connection: {error!r}")
            return
        tally.connections += 1
        connection = _Connection(reader, writer, tally)
        reading = asyncio.ensure_future(connection.read()) if random.random() < 0.9 else None
        try:
            sent = await _send(random, connection, count, reads=reading is not None)
            if sent < count:
                tally.closed_by_broker += 1
                budget.left += count - sent
            await asyncio.sleep(random.choice((0, LAST_ANSWERS_S)))
        finally:
            writer.close()
            if reading is not None:
                reading.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await reading


class _Connection:
    """One connection, and what the broker says on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tally: Tally) -> None:
        self.tally = tally
        self._reader = reader
        self._writer = writer
        self._heard = asyncio.Event()

    async def read(self) -> None:
        frames = all_frames()
        with contextlib.suppress(OSError):
            while data := await self._reader.read(1 << 16):
                for command, _ in frames.feed(data):
                    self._take(command)
        self._writer.close()

    def _take(self, command: pb.BaseCommand) -> None:
        name = pb.BaseCommand.Type.Name(command.type)
        message: Any = getattr(command, FIELDS[command.type])
        error = getattr(message, "error", None)
        has_error = error is not None and message.HasField("error")
        self.tally.answers[f"{name} {pb.ServerError.Name(error)}" if has_error else name] += 1  # type: ignore[arg-type]
        if command.type == pb.BaseCommand.PONG:
            self._heard.set()
        self._heard.set()

    async def write(self, data: bytes) -> bool:
        """False when the connection is closed, or full as nothing is read at the other end."""
        self._writer.write(data)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._writer.drain()
        except (OSError, TimeoutError):
            return False
        return not self._writer.transport.is_closing()

    async def has_come_through(self) -> bool:
        """Whether the broker has read all that was sent: it answers a PING. False when it closes, or waits for more bytes."""
        self._heard.clear()
        if not await self.write(PING):
            return False
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._heard.wait()
        except TimeoutError:
            return False
        return not self._writer.transport.is_closing()


async def _send(random: Random, connection: _Connection, count: int, *, reads: bool) -> int:
    """Send so many frames; how many of them before the broker closed the connection."""
    maker, tally = FrameMaker(random), connection.tally
    first = maker.introduction() if random.random() < 0.95 else []
    waiting = bytearray()
    for number in range(count):
        kind, name, data = first.pop(0) if first else maker.next()
        tally.kinds[kind] += 1
        tally.sent[name] += 1
        waiting += data
        draw, is_last = random.random(), number == count - 1
        if draw < 0.1 or is_last:
            # All of it; frames that follow are sent only when the broker has got so far.
            if not await connection.write(bytes(waiting)) or (reads and not await connection.has_come_through()):
                return number + 1
            waiting.clear()
        elif draw < 0.2:
            size = random.randrange(len(waiting) + 1)
            if not await connection.write(bytes(waiting[:size])):
                return number + 1
            del waiting[:size]
            await asyncio.sleep(0)
    return count
