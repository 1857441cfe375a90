"""Clients that send everything again, a ledger that fails and a broker that crashes, around `Deduplication`.

What must hold after any walk: every message is stored exactly once and in the order in which its producer made it, and no client
was told that something is stored which is not.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tests.support.world import SyncWorld

from pybroker.broker.publishing.deduplication import Accepted, Deduplication, Part, Verdict
from pybroker.model.events import SendRun
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.entry_metadata import stored_sequence_id

NAMES = ("a", "b")
MAX_ROUNDS = 50


@dataclass(frozen=True)
class Sent:
    """One SEND: a message, a batch of them, or a part of one."""

    name: str
    sequence_id: int
    highest: int = 0
    chunk_id: int = 0
    chunk_count: int = 1

    @property
    def is_last_part(self) -> bool:
        return self.chunk_id == self.chunk_count - 1

    @property
    def entry(self) -> bytes:
        meta = pb.MessageMetadata(producer_name=self.name, sequence_id=self.sequence_id, publish_time=1)
        if self.highest:
            meta.highest_sequence_id = self.highest
        if self.chunk_count > 1:
            meta.uuid = f"{self.name}-{self.sequence_id}"
            meta.chunk_id, meta.num_chunks_from_msg = self.chunk_id, self.chunk_count
        header = meta.SerializeToString()
        return len(header).to_bytes(4, "big") + header


@dataclass
class Client:
    """Keeps what it has no receipt for, and sends it again on each connection."""

    name: str
    made: list[Sent] = field(default_factory=list)
    unanswered: list[Sent] = field(default_factory=list)
    unsent: list[Sent] = field(default_factory=list)
    session: object = field(default_factory=object)
    is_connected: bool = True
    next_id: int = 0


@dataclass
class InFlight:
    client: Client
    session: object
    accepted: Accepted
    sent: list[Sent]


class DeduplicationWorld(SyncWorld):
    """The rules of deduplication, clients, and the topic's log. A step draws its details from the seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.known = Deduplication()
        self.clients = [Client(name) for name in NAMES]
        self.log: list[Sent] = []  # durable
        self.in_flight: list[InFlight] = []
        self.snapshot: dict[str, int] = {}
        self.snapshot_end = 0  # of the log
        self.refuses = False

    # --- clients -----------------------------------------------------------------------------------------------------

    def make(self) -> None:
        """A client has something new to send."""
        client = self.random.choice(self.clients)
        for _ in range(self.random.randint(1, 4)):
            first = client.next_id
            kind = self.random.choice(("single", "single", "batch", "chunks"))
            client.next_id += self.random.choice((1, 1, 3)) + (4 if kind == "batch" else 0)
            if kind == "batch":
                new = [Sent(client.name, first, first + 4)]
            elif kind == "chunks":
                new = [Sent(client.name, first, chunk_id=each, chunk_count=3) for each in range(3)]
            else:
                new = [Sent(client.name, first)]
            client.made += new
            client.unanswered += new
            client.unsent += new

    def send(self) -> None:
        """What one read of a socket brings; it may have been on its way when the client was told of an error."""
        client = self.random.choice(self.clients)
        if client.unsent:
            count = self.random.randint(1, len(client.unsent))
            sent, client.unsent = client.unsent[:count], client.unsent[count:]
            self.publish(client, sent)

    def reconnect(self) -> None:
        """At will, as when a network breaks; perhaps with something that was answered already."""
        self.connect(self.random.choice(self.clients), self.random.choice((0, 0, 1, 5)))

    def connect(self, client: Client, repeated: int = 0) -> None:
        client.is_connected, client.session = False, object()
        while not self.known.is_settled(client.name):  # The broker answers once nothing of that name is in flight.
            self.complete()
        client.is_connected = True
        last = self.known.last_sequence_id(client.name)
        assert last in {-1, *(max(each.sequence_id, each.highest) for each in self.log if each.name == client.name)}
        first = max(0, len(client.made) - len(client.unanswered) - repeated)
        while 0 < first < len(client.made) and client.made[first].chunk_id:
            first -= 1  # A client sends a large message again from its first part on.
        client.unanswered = client.made[first:]
        client.unsent = list(client.unanswered)

    def publish(self, client: Client, sent: list[Sent]) -> None:
        run = SendRun(1)
        run.sequence_ids = [each.sequence_id for each in sent]
        run.highest_sequence_ids = [each.highest for each in sent]
        run.message_counts = [1] * len(sent)
        run.payloads = [each.entry for each in sent]
        run.chunk_count = sum(each.chunk_count > 1 for each in sent)
        for part in self.known.judge(client.name, client.session, run):
            of_part = sent if part.indexes is None else [sent[index] for index in part.indexes]
            if part.verdict is Verdict.NEW:
                self.append(client, part, of_part)
            elif part.verdict is Verdict.DUPLICATE:
                for each in of_part:
                    assert each in self.log, f"{each} was called a duplicate"
                    self.receipt(client, each)
            else:
                client.is_connected = False  # as every client does at that error
        self.known.check_invariants()

    def receipt(self, client: Client, sent: Sent) -> None:
        if client.is_connected and sent in client.unanswered:
            client.unanswered.remove(sent)

    # --- the ledger --------------------------------------------------------------------------------------------------

    def append(self, client: Client, part: Part, sent: list[Sent]) -> None:
        if self.known.has_failed(client.name, client.session):
            client.is_connected = False
            return
        accepted = self.known.offered(client.name, client.session, part.highest)
        if self.refuses:
            self.known.refused(accepted)
            client.is_connected = False
        else:
            self.known.accepted(accepted)
            self.in_flight.append(InFlight(client, client.session, accepted, sent))

    def change_room(self) -> None:
        """There is no room for entries, or room again."""
        self.refuses = not self.refuses

    def complete(self) -> None:
        """Something becomes durable, in the order of the appends."""
        for _ in range(self.random.randint(1, max(1, len(self.in_flight)))):
            if self.in_flight:
                done = self.in_flight.pop(0)
                self.log += done.sent
                self.known.stored(done.accepted)
                if done.session is done.client.session:
                    for each in done.sent:
                        self.receipt(done.client, each)
        self.known.check_invariants()

    def fail(self) -> None:
        """Everything from some append on is refused."""
        for _ in range(self.random.randint(0, len(self.in_flight))):
            self.complete()
        failed, self.in_flight = self.in_flight, []
        for each in failed:
            self.known.failed(each.accepted)
            if each.session is each.client.session:
                each.client.is_connected = False
        self.known.check_invariants()

    # --- the broker --------------------------------------------------------------------------------------------------

    def take_snapshot(self) -> None:
        self.snapshot, self.snapshot_end = dict(self.known.snapshot()), len(self.log)

    def crash(self) -> None:
        """What was in flight is durable up to some append, and nobody was told; a snapshot may be newer than its position."""
        if self.random.random() < 0.3:
            self.snapshot = dict(self.known.snapshot())
        for each in self.in_flight[: self.random.randint(0, len(self.in_flight))]:
            self.log += each.sent
        self.in_flight = []
        self.known = Deduplication()
        for name, sequence_id in self.snapshot.items():
            self.known.found(name, sequence_id)
        for sent in self.log[self.snapshot_end :]:
            found = stored_sequence_id(sent.entry)
            if found is not None:
                self.known.found(*found)
        for client in self.clients:
            self.connect(client)

    # --- the end -----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        self.known.check_invariants()

    def finish(self) -> None:
        """Every client receives a receipt for each of its messages."""
        self.refuses = False
        for _ in range(MAX_ROUNDS):
            for client in self.clients:
                self.connect(client)
                if client.unsent:
                    self.publish(client, client.unsent)
                    client.unsent = []
            while self.in_flight:
                self.complete()
            if not any(client.unanswered for client in self.clients):
                break
        else:
            raise AssertionError("clients send for ever")
        for client in self.clients:
            self.check_stored(client)

    def check_stored(self, client: Client) -> None:
        stored = [each for each in self.log if each.name == client.name]
        whole = [each for each in stored if each.is_last_part]
        assert whole == [each for each in client.made if each.is_last_part], "stored once, in order"
        for last in whole:
            end = stored.index(last)
            parts = [each.chunk_id for each in stored[end - last.chunk_count + 1 : end]]
            assert parts == list(range(last.chunk_count - 1)), "with all its parts in front of it"


STEPS = (
    "make",
    "make",
    "send",
    "send",
    "send",
    "complete",
    "complete",
    "reconnect",
    "fail",
    "change_room",
    "take_snapshot",
    "crash",
)


def walk(seed: int, steps: int) -> None:
    """One history; the seed repeats it."""
    world = DeduplicationWorld(seed)
    world.play((world.random.choice(STEPS),) for _ in range(steps))
