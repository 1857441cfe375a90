"""A random test of the BookKeeper client beside the model of bookies, with an oracle.

A story is a list of steps on one ledger: its writer appends, bookies fail in every way, a reader follows, and other clients
recover. In the end all bookies work again, the ledger is recovered, and the oracle checks:

* each append ended exactly once, and stored ones in order;
* each stored entry is read back with its bytes, and no entry that certainly is not stored exists;
* each entry of the ledger has the bytes that were appended, on at least an ack quorum of its bookies;
* the last confirmed entry that a reader learns never decreases, and is never ahead of the writer or of the end;
* all clients agree about the end of the ledger.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from random import Random

from tests.support.bookie_model import ModelMetadata, ModelNetwork
from tests.support.stepped_loop import NothingHappens, SteppedLoop

from pybroker.bookkeeper import (
    AppendOutcome,
    BookKeeperClient,
    BookKeeperError,
    BookKeeperOptions,
    DigestType,
    LedgerReader,
    LedgerWriter,
    Quorums,
)
from pybroker.bookkeeper.errors import DamagedEntry, EntryUnavailable, NoSuchEntry, TooManyPending
from pybroker.bookkeeper.ledger_metadata import LedgerMetadata, decode_metadata
from pybroker.bookkeeper.protocol.entry_format import EntryFormat
from pybroker.runtime.clock import Clock

QUORUMS = (Quorums(1, 1, 1), Quorums(2, 2, 2), Quorums(3, 2, 2), Quorums(3, 3, 2), Quorums(3, 2, 1), Quorums(3, 3, 3))
_WORDS = """
append append append append_many append_large pause pause long_pause kill start freeze thaw reset read_only writable
fail_writes repair lose_disk follow read close recover recover_twice corrupt damage abandon
"""
STEPS = _WORDS.split()
Step = tuple[str, int]
BOOKIES = 5


def random_steps(seed: int, count: int) -> list[Step]:
    chance = Random(seed)
    return [(chance.choice(STEPS), chance.randrange(1 << 16)) for _ in range(count)]


class LoopClock(Clock):
    """The time of the running loop."""

    def monotonic_ms(self) -> float:
        return asyncio.get_running_loop().time() * 1000

    def wall_ms(self) -> int:
        return int(self.monotonic_ms())


class Story:
    """One ledger, its clients and its oracle."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.network = ModelNetwork(self.chance, BOOKIES)
        self.network.duplicate_share = self.chance.choice((0.0, 0.05))
        self.store = ModelMetadata(self.chance, self.chance.choice((0.0, 0.0, 0.05)))
        self.quorums = self.chance.choice(QUORUMS)
        self.options = BookKeeperOptions(
            quorums=self.quorums,
            digest_type=self.chance.choice((DigestType.CRC32C, DigestType.CRC32, DigestType.HMAC)),
            password=self.chance.choice((b"", b"secret")),
            metadata_timeout_ms=10_000,
            max_pending_entries=40,
            max_concurrent_reads=4,
            max_concurrent_recovery_reads=self.chance.choice((1, 3, 16)),
            use_batch_reads=self.chance.random() < 0.5,
            max_batch_entries=7,
        )
        self.clients: list[BookKeeperClient] = []
        self.payloads: dict[int, bytes] = {}
        self.outcomes: dict[int, AppendOutcome] = {}
        self.ends: set[tuple[int, int]] = set()
        self.disks_to_lose = self.quorums.ack_quorum - 1
        self.is_recovered = False
        self.tasks: list[asyncio.Task[None]] = []

    def client(self) -> BookKeeperClient:
        client = BookKeeperClient(
            self.store,
            self.network,
            self.options,
            chance=self.chance,
            clock=LoopClock(),
            open_transport=self.network.open_transport,
        )
        self.clients.append(client)
        return client

    # The listener of the writer

    def append_completed(
        self, first_entry_id: int, contexts: list[object], outcome: AppendOutcome, error: BookKeeperError | None
    ) -> None:
        assert (outcome is AppendOutcome.STORED) == (error is None)
        for entry_id, context in enumerate(contexts, first_entry_id):
            assert context == entry_id, "an entry ended with the context of another one"
            assert entry_id not in self.outcomes, f"entry {entry_id} ended twice"
            assert entry_id == len(self.outcomes), "entries end in order"
            if outcome is AppendOutcome.STORED:
                assert AppendOutcome.UNKNOWN not in self.outcomes.values(), "stored behind an unknown entry"
                self.check_replicas(entry_id)
            self.outcomes[entry_id] = outcome

    def check_replicas(self, entry_id: int) -> None:
        """A confirmed entry is on an ack quorum of the bookies that the stored metadata names, but for lost disks."""
        metadata = decode_metadata(self.store.ledgers[self.writer.ledger_id].value)
        holders = self.holders(metadata, entry_id)
        lost = sum(bookie.has_lost_its_disk for bookie in self.network.bookies.values())
        assert holders >= self.quorums.ack_quorum - lost, f"entry {entry_id} is on {holders} of its bookies"

    def holders(self, metadata: LedgerMetadata, entry_id: int) -> int:
        ensemble = metadata.segment_of(entry_id).ensemble
        replicas = [ensemble[(entry_id + i) % len(ensemble)] for i in range(metadata.quorums.write_quorum)]
        ledgers = [self.network.bookies[each].ledgers.get(self.writer.ledger_id) for each in replicas]
        return sum(ledger is not None and entry_id in ledger.entries for ledger in ledgers)

    async def run(self, steps: Sequence[Step]) -> None:
        self.owner = self.client()
        try:
            self.writer: LedgerWriter = await self.owner.create_ledger({"owner": b"story"}, self)
            self.reader: LedgerReader | None = None
            self.last_read_confirmed = -1
            for name, number in steps:
                await self.step(name, number)
                self.writer._state.check_invariants()
            await self.end()
        finally:
            for task in self.tasks:
                task.cancel()
            for client in self.clients:
                await client.close()

    def bookie(self, number: int) -> str:
        """A bookie, more often one of the ensemble."""
        ids = [*self.writer.ensemble, *self.writer.ensemble, *self.network.bookies]
        return ids[number % len(ids)]

    async def step(self, name: str, number: int) -> None:
        bookie_id = self.bookie(number)
        if name.startswith("append"):
            self.append({"append": 1, "append_many": number % 20, "append_large": 1}[name], number)
        elif name.endswith("pause"):
            await asyncio.sleep(number % (50 if name == "pause" else 8000) / 1000)
        elif name == "follow":
            await self.follow()
        elif name == "read":
            await self.read_some(number)
        elif name == "abandon" and number % 4 == 0:
            await self.owner.close()  # the process of the writer ends
            assert len(self.outcomes) == len(self.payloads), "an append did not end with its client"
        elif name in {"close", "recover", "recover_twice"} and number % 4 == 0:
            start = asyncio.get_running_loop().create_task
            for _ in range(1 + (name == "recover_twice")):
                self.tasks.append(start(self.close() if name == "close" else self.recover(self.client())))
        else:
            self.fault(name, bookie_id, number)

    def fault(self, name: str, bookie_id: str, number: int) -> None:
        network = self.network
        bookie = network.bookies[bookie_id]
        if name in {"kill", "start", "reset", "thaw"}:
            getattr(network, name)(bookie_id)
        elif name == "freeze":
            network.frozen.add(bookie_id)
        elif name in {"read_only", "writable"}:
            bookie.is_read_only = name == "read_only"
        elif name == "fail_writes":
            bookie.fails_writes = True
        elif name == "repair":
            network.repair()
        elif name == "corrupt":
            network.corrupts[bookie_id] = True
        elif name == "lose_disk" and self.disks_to_lose > 0 and not bookie.has_lost_its_disk:
            self.disks_to_lose -= 1
            network.kill(bookie_id)
            bookie.lose_disk(set(self.store.ledgers))
            network.start(bookie_id)
        elif name == "damage" and self.disks_to_lose > 0:
            self.damage(bookie_id, number)

    def append(self, count: int, number: int) -> None:
        for _ in range(count):
            entry_id = self.writer._state.last_pushed + 1
            size = 70_000 if number % 10 == 0 else number % 60
            payload = b"%d:%d:" % (entry_id, number) + self.chance.randbytes(size)
            try:
                assert self.writer.append(payload, entry_id) == entry_id
            except TooManyPending:
                assert self.writer.refusal() is not None
                return
            except BookKeeperError:
                assert self.writer.error is not None
                return
            self.payloads[entry_id] = payload

    def damage(self, bookie_id: str, number: int) -> None:
        """Flip one bit of one stored entry. Counts as one of the disks that may be lost."""
        ledger = self.network.bookies[bookie_id].ledgers.get(self.writer.ledger_id)
        if ledger is None or not ledger.entries or self.options.digest_type is DigestType.DUMMY:
            return
        self.disks_to_lose -= 1
        entry_id = sorted(ledger.entries)[number % len(ledger.entries)]
        stored = ledger.entries[entry_id]
        at = number % len(stored)
        ledger.entries[entry_id] = stored[:at] + bytes([stored[at] ^ 4]) + stored[at + 1 :]

    async def follow(self) -> None:
        try:
            if self.reader is None:
                self.reader = await self.client().open_ledger(self.writer.ledger_id, self.options.password)
            await self.clients[0].renew(self.reader)
            found = await self.reader.read_last_confirmed()
        except BookKeeperError:
            return
        assert found >= self.last_read_confirmed, "the last confirmed entry went back"
        self.last_read_confirmed = found
        if (
            not self.is_recovered
            and not any(end >= 0 for end, _ in self.ends)
            and self.reader.metadata.state.name == "OPEN"
        ):
            assert found <= self.writer.last_confirmed, "a reader is ahead of the writer"

    async def read_some(self, number: int) -> None:
        if self.reader is None or self.reader.last_readable < 0:
            return
        first = number % (self.reader.last_readable + 1)
        try:
            entries = await self.reader.read(first, 10, 1000)
        except (EntryUnavailable, DamagedEntry):
            return
        for entry_id, entry in enumerate(entries, first):
            assert entry.payload == self.payloads[entry_id], f"wrong bytes of entry {entry_id}"

    async def recover(self, client: BookKeeperClient) -> None:
        self.is_recovered = True
        try:
            reader = await client.recover_ledger(self.writer.ledger_id, self.options.password)
        except BookKeeperError:
            return
        self.ended(reader.metadata)

    async def close(self) -> None:
        try:
            self.ended(await self.owner.close_ledger(self.writer))
        except BookKeeperError as error:
            if "entries are lost" in str(error):
                raise AssertionError("another client closed the ledger too early") from error

    def ended(self, metadata: LedgerMetadata) -> None:
        assert metadata.state.name == "CLOSED"
        self.ends.add((metadata.last_entry_id, metadata.length_bytes))
        assert len(self.ends) == 1, f"clients do not agree about the end: {self.ends}"

    async def end(self) -> None:
        """Repair everything, close or recover the ledger, and judge it."""
        self.network.repair()
        self.store.loss_share = 0.0
        await asyncio.sleep(1)
        if self.chance.random() < 0.5:
            await asyncio.sleep(40)
            assert len(self.outcomes) == len(self.payloads), "an append did not end"
        client = self.client()
        if self.chance.random() < 0.3:
            await self.close()
        reader = await client.recover_ledger(self.writer.ledger_id, self.options.password)
        self.ended(reader.metadata)
        await asyncio.sleep(40)
        await asyncio.wait_for(asyncio.gather(*self.tasks), 200)
        assert len(self.outcomes) == len(self.payloads), "an append did not end"
        await self.judge(client, reader)

    async def judge(self, client: BookKeeperClient, reader: LedgerReader) -> None:
        last = reader.metadata.last_entry_id
        assert last < len(self.payloads), "the ledger ends behind the last entry that was sent"
        assert self.last_read_confirmed <= last, "a reader saw entries that do not exist"
        assert reader.metadata.length_bytes == sum(len(self.payloads[each]) for each in range(last + 1)), "wrong length"
        for entry_id, outcome in self.outcomes.items():
            if outcome is AppendOutcome.STORED:
                assert entry_id <= last, f"entry {entry_id} was stored and is lost"
            elif outcome is AppendOutcome.FENCED:
                assert entry_id > last, f"entry {entry_id} was not stored and exists"
        found: list[bytes] = []
        format_ = EntryFormat(self.writer.ledger_id, self.options.digest_type, self.options.password)
        while len(found) <= last:
            for entry in await reader.read(len(found), 50, 1_000_000):
                assert entry.entry_id == len(found)
                assert entry.payload == self.payloads[len(found)], f"wrong bytes of entry {len(found)}"
                found.append(entry.payload)
        for entry_id in range(last + 1):
            metadata = reader.metadata
            lost = self.quorums.ack_quorum - 1 - self.disks_to_lose
            assert self.holders(metadata, entry_id) >= self.quorums.ack_quorum - lost, (
                f"entry {entry_id} has too few replicas"
            )
        for bookie in self.network.bookies.values():
            ledger = bookie.ledgers.get(self.writer.ledger_id)
            for entry_id, stored in ledger.entries.items() if ledger is not None else ():
                try:
                    assert format_.unpack(stored, entry_id).payload == self.payloads[entry_id]
                except DamagedEntry:
                    assert self.disks_to_lose < self.quorums.ack_quorum - 1, "damage that no step did"
        if last >= 0:
            streamed = [entry.payload async for entry in reader.entries(0, 3000)]
            assert streamed == found
        try:
            await reader.read(last + 1, 1, 1)
        except NoSuchEntry:
            return
        raise AssertionError("an entry behind the end can be read")


def tell(seed: int, steps: Sequence[Step]) -> Story:
    """Run one story on a loop of its own."""
    story = Story(seed)
    loop = SteppedLoop(story.chance, 0.0)
    try:
        loop.run_until_complete(story.run(steps))
    except NothingHappens:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        with suppress(NothingHappens):
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        raise
    finally:
        loop.close()
    return story
