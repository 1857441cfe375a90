"""A model of bookies, their network and their metadata store, for a client on a `SteppedLoop`.

`ModelBookie` has the rules and no IO; it decodes frames by itself, so that an error of the client's codec is not repeated
here. `ModelNetwork` delivers frames with random delays: in order to a bookie, and answers in any order, as a bookie with several
threads sends them.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from pybroker.bookkeeper.errors import LedgerExists, MetadataConflict, MetadataUnknown, NoSuchLedger
from pybroker.bookkeeper.metadata_store import BookieAddress, BookieRegistry, LedgerMetadataStore, StoredMetadata

OK, NO_LEDGER, NO_ENTRY, BAD_REQUEST, IO_ERROR = 0, 1, 2, 100, 101
WRONG_KEY, FENCED, READ_ONLY, UNKNOWN_STATE = 102, 104, 105, 107


@dataclass
class StoredLedger:
    master_key: bytes
    entries: dict[int, bytes] = field(default_factory=dict)
    is_fenced: bool = False


class ModelBookie:
    """What one bookie stores, and its answer to each request of protocol version 2."""

    def __init__(self, bookie_id: str) -> None:
        self.bookie_id = bookie_id
        self.ledgers: dict[int, StoredLedger] = {}
        self.is_read_only = False
        self.fails_writes = False
        self.has_lost_its_disk = False
        self.lost_ledgers: set[int] = set()
        """Ledgers that existed when the disk was lost: it does not know whether it had them."""

    def lose_disk(self, ledger_ids: set[int]) -> None:
        self.ledgers.clear()
        self.has_lost_its_disk = True
        self.lost_ledgers |= ledger_ids

    def answer(self, body: bytes) -> bytes:
        """Return the body of the answer to the body of a request."""
        word, *_ = struct.unpack_from(">I", body)
        operation, flags = word >> 16 & 0xFF, word & 0xFFFF
        assert word >> 24 == 2, "protocol version 2"
        if operation == 1:
            ledger_id, entry_id = struct.unpack_from(">qq", body, 24)
            return self._answer(word, self._add(flags, body[4:24], ledger_id, entry_id, body[24:]), ledger_id, entry_id)
        if operation == 7:
            ledger_id, first, request_id, max_count, max_bytes = struct.unpack_from(">qqqiq", body, 4)
            code, stored = self._batch(ledger_id, first, max_count, max_bytes)
            return self._answer(word, code, ledger_id, first, struct.pack(">q", request_id) + stored)
        assert operation == 2
        ledger_id, entry_id = struct.unpack_from(">qq", body, 4)
        code, stored = self._read(flags, body[20:], ledger_id, entry_id)
        return self._answer(word, code, ledger_id, entry_id, stored)

    def _answer(self, word: int, code: int, ledger_id: int, entry_id: int, data: bytes = b"") -> bytes:
        return struct.pack(">Iiqq", word & 0xFFFF0000, code, ledger_id, entry_id) + data

    def _add(self, flags: int, master_key: bytes, ledger_id: int, entry_id: int, stored: bytes) -> int:
        if self.is_read_only:
            return READ_ONLY
        if self.fails_writes:
            return IO_ERROR
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            ledger = self.ledgers[ledger_id] = StoredLedger(master_key, is_fenced=ledger_id in self.lost_ledgers)
        if ledger.master_key != master_key:
            return WRONG_KEY
        if ledger.is_fenced and not flags & 2:
            return FENCED
        ledger.entries[entry_id] = stored
        return OK

    def _missing(self, ledger_id: int, code: int) -> int:
        return UNKNOWN_STATE if ledger_id in self.lost_ledgers else code

    def _read(self, flags: int, master_key: bytes, ledger_id: int, entry_id: int) -> tuple[int, bytes]:
        ledger = self.ledgers.get(ledger_id)
        if flags & 1:
            if ledger is None:
                ledger = self.ledgers[ledger_id] = StoredLedger(master_key)
            if ledger.master_key != master_key:
                return WRONG_KEY, b""
            ledger.is_fenced = True
        if ledger is None:
            return self._missing(ledger_id, NO_LEDGER), b""
        if entry_id == -1:
            entry_id = max(ledger.entries, default=-1)
            if ledger_id in self.lost_ledgers:
                return UNKNOWN_STATE, b""
        stored = ledger.entries.get(entry_id)
        return (OK, stored) if stored is not None else (self._missing(ledger_id, NO_ENTRY), b"")

    def _batch(self, ledger_id: int, first: int, max_count: int, max_bytes: int) -> tuple[int, bytes]:
        ledger = self.ledgers.get(ledger_id)
        if ledger is None or first not in ledger.entries:
            return self._missing(ledger_id, NO_ENTRY if ledger else NO_LEDGER), b""
        parts: list[bytes] = []
        total = 0
        for entry_id in range(first, first + max_count):
            stored = ledger.entries.get(entry_id)
            if stored is None or (parts and total + len(stored) > max_bytes):
                break
            parts.append(struct.pack(">I", len(stored)) + stored)
            total += len(stored) + 4
        return OK, b"".join(parts)


class ModelTransport(asyncio.Transport):
    """One side of a connection to a model bookie."""

    def __init__(self, network: ModelNetwork, bookie: ModelBookie, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._network = network
        self.bookie = bookie
        self.protocol = protocol
        self.is_lost = False
        self._input = b""
        self._arrival_s = 0.0
        self._held: list[Callable[[], None]] = []

    def is_closing(self) -> bool:
        return self.is_lost

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.is_lost:
            raise RuntimeError("the handler is closed")  # as uvloop does
        self._input += bytes(data)
        while len(self._input) >= 4:
            (size,) = struct.unpack_from(">I", self._input)
            if len(self._input) < 4 + size:
                break
            body, self._input = self._input[4 : 4 + size], self._input[4 + size :]
            loop = asyncio.get_running_loop()
            self._arrival_s = max(self._arrival_s, loop.time() + self._network.delay_s())
            self._schedule(self._arrival_s, self._arrived, body)

    def _schedule(self, at_s: float, callback: Callable[[bytes], None], body: bytes) -> None:
        asyncio.get_running_loop().call_at(at_s, callback, body)

    def writelines(self, list_of_data: object) -> None:
        self.write(b"".join(list_of_data))  # type: ignore[arg-type]

    def abort(self) -> None:
        """Close by the client. Requests on the way may still arrive."""
        if not self.is_lost:
            self.is_lost = True
            self._network.transports.pop(self, None)
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    close = abort

    def lose(self) -> None:
        """Lose the connection. Requests on the way and answers are lost or not."""
        if not self.is_lost:
            self.is_lost = True
            self._network.transports.pop(self, None)
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, ConnectionResetError("reset"))

    def thaw(self) -> None:
        held, self._held = self._held, []
        for each in held:
            each()

    def _arrived(self, body: bytes) -> None:
        bookie_id = self.bookie.bookie_id
        if bookie_id in self._network.down or (self.is_lost and self._network.chance.random() < 0.5):
            return
        if bookie_id in self._network.frozen:
            self._held.append(lambda: self._arrived(body))
            return
        answer = self.bookie.answer(body)
        if self._network.corrupts.get(bookie_id) and self._network.chance.random() < 0.3:
            at = self._network.chance.randrange(24, len(answer)) if len(answer) > 24 else None
            if at is not None:
                answer = answer[:at] + bytes([answer[at] ^ 1 << self._network.chance.randrange(8)]) + answer[at + 1 :]
        if self._network.chance.random() < self._network.duplicate_share:
            self.bookie.answer(body)  # the request arrives twice
        asyncio.get_running_loop().call_later(self._network.delay_s(), self._answered, answer)

    def _answered(self, answer: bytes) -> None:
        if self.bookie.bookie_id in self._network.frozen:
            self._held.append(lambda: self._answered(answer))
        elif not self.is_lost:
            self.protocol.data_received(struct.pack(">I", len(answer)) + answer)


class ModelNetwork(BookieRegistry):
    """Bookies by id, and what is wrong with them at the moment."""

    def __init__(self, chance: Random, bookie_count: int) -> None:
        self.chance = chance
        self.bookies = {f"bookie-{number}": ModelBookie(f"bookie-{number}") for number in range(bookie_count)}
        self.down: set[str] = set()
        self.frozen: set[str] = set()
        self.slow: set[str] = set()
        self.corrupts: dict[str, bool] = {}
        self.duplicate_share = 0.0
        self.transports: dict[ModelTransport, None] = {}

    def delay_s(self) -> float:
        return self.chance.choice((0.0, 0.0001, 0.0003, 0.001, 0.02))

    async def open_transport(self, address: BookieAddress, protocol: asyncio.Protocol) -> None:
        await asyncio.sleep(self.delay_s())
        if address.host in self.down:
            raise ConnectionRefusedError("connection refused")
        transport = ModelTransport(self, self.bookies[address.host], protocol)
        self.transports[transport] = None
        protocol.connection_made(transport)

    def kill(self, bookie_id: str) -> None:
        """The bookie ends at once. What it has acknowledged stays on its disk."""
        self.down.add(bookie_id)
        self.frozen.discard(bookie_id)
        self.reset(bookie_id)

    def start(self, bookie_id: str) -> None:
        self.down.discard(bookie_id)

    def reset(self, bookie_id: str) -> None:
        for transport in [each for each in self.transports if each.bookie.bookie_id == bookie_id]:
            transport.lose()

    def thaw(self, bookie_id: str) -> None:
        self.frozen.discard(bookie_id)
        for transport in [each for each in self.transports if each.bookie.bookie_id == bookie_id]:
            transport.thaw()

    def repair(self) -> None:
        """All bookies run and work."""
        self.corrupts.clear()
        for bookie_id, bookie in self.bookies.items():
            self.start(bookie_id)
            self.thaw(bookie_id)
            bookie.is_read_only = bookie.fails_writes = False

    def writable(self) -> Mapping[str, BookieAddress]:
        return {
            bookie_id: BookieAddress(bookie_id, 1)
            for bookie_id, bookie in sorted(self.bookies.items())
            if bookie_id not in self.down and not bookie.is_read_only
        }

    def read_only(self) -> Mapping[str, BookieAddress]:
        return {
            bookie_id: BookieAddress(bookie_id, 1)
            for bookie_id, bookie in sorted(self.bookies.items())
            if bookie_id not in self.down and bookie.is_read_only
        }

    def address_of(self, bookie_id: str) -> BookieAddress | None:
        return BookieAddress(bookie_id, 1) if bookie_id in self.bookies else None

    async def refresh(self) -> None:
        """The list is always current."""


class ModelMetadata(LedgerMetadataStore):
    """Ledger metadata in memory. A share of the calls loses its answer, or fails before it had an effect."""

    def __init__(self, chance: Random, loss_share: float = 0.0) -> None:
        self.chance = chance
        self.loss_share = loss_share
        self.ledgers: dict[int, StoredMetadata] = {}
        self._last_id = 0

    async def _call(self) -> bool:
        """Wait, and return whether the answer is lost afterwards."""
        await asyncio.sleep(self.chance.choice((0, 0.0005, 0.002, 0.03)))
        if self.chance.random() < self.loss_share:
            raise MetadataUnknown("the request was lost")
        return self.chance.random() < self.loss_share

    async def _answer(self, is_lost: bool) -> None:
        await asyncio.sleep(self.chance.choice((0, 0.0005, 0.002)))
        if is_lost:
            raise MetadataUnknown("the answer was lost")

    async def new_ledger_id(self) -> int:
        await asyncio.sleep(0)
        self._last_id += self.chance.choice((1, 1, 3))
        return self._last_id

    async def create(self, ledger_id: int, value: bytes) -> int:
        is_lost = await self._call()
        if ledger_id in self.ledgers:
            raise LedgerExists(f"ledger {ledger_id} exists")
        self.ledgers[ledger_id] = StoredMetadata(value, 0)
        await self._answer(is_lost)
        return 0

    async def read(self, ledger_id: int) -> StoredMetadata:
        is_lost = await self._call()
        if ledger_id not in self.ledgers:
            raise NoSuchLedger(f"ledger {ledger_id}")
        found = self.ledgers[ledger_id]
        await self._answer(is_lost)
        return found

    async def write(self, ledger_id: int, value: bytes, version: int) -> int:
        is_lost = await self._call()
        found = self.ledgers.get(ledger_id)
        if found is None:
            raise NoSuchLedger(f"ledger {ledger_id}")
        if found.version != version:
            raise MetadataConflict(f"ledger {ledger_id}")
        self.ledgers[ledger_id] = StoredMetadata(value, version + 1)
        await self._answer(is_lost)
        return version + 1

    async def delete(self, ledger_id: int) -> None:
        self.ledgers.pop(ledger_id, None)

    async def list_ledgers(self) -> list[int]:
        return sorted(self.ledgers)
