"""A data directory with transactions, acknowledgements in them and delayed messages; and what a start makes of it.

The directory is made by a real broker that is stopped once and killed twice, so that its table has snapshots and deltas and its
journal has what came behind. `look` opens it as a start does, without a broker, and compares it with what clients were promised.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from random import Random

from tests.crash import stored_topics
from tests.crash.stored_topics import Stores
from tests.support.broker_process import BrokerProcess
from tests.support.data_directories import copy_data_directory
from tests.support.rest import call

from pybroker.broker.transactions.transaction_recovery import recover
from pybroker.client import Message, MessageConsumer, MessageProducer, PulsarClient, connect
from pybroker.dispatch.delayed.delayed_record import stored_changes, stored_runs
from pybroker.errors import DamagedEntries, NoSuchLedger, StoreError
from pybroker.local_store.store_options import LocalStoreOptions
from pybroker.managed_ledger.managed_ledger import ManagedLedger
from pybroker.managed_ledger.orphaned_ledgers import find_orphaned_ledgers
from pybroker.managed_ledger.pending_transaction_acks import Hold
from pybroker.model.position import Position
from pybroker.model.txn_id import TxnId
from pybroker.runtime.clock import Clock
from pybroker.transactions.coordinator_state import CoordinatorState, Status, Transaction
from pybroker.transactions.transaction_log import TransactionLog
from pybroker.wire.entry_metadata import metadata_span

ROOT = stored_topics.ROOT
IN, OUT, SIDE, LATE = TOPICS = ("in", "out", "side", "late")
"""Transactions acknowledge messages of `in` and send to `out`, in the last run also to `side`; messages of `late` are delayed."""
SUBSCRIPTION = "s"
SETTINGS = {
    "managedLedgerMaxEntriesPerLedger": "60",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
    "transactionBufferSnapshotMaxTransactionCount": "3",
    "transactionBufferSnapshotMinTimeInMillis": "100",
    "journalFileSizeMB": "1",
    "storageReserveMB": "1",
    "journalDirectIO": "false",
}
OPTIONS = LocalStoreOptions(
    direct_io=False, journal_file_bytes=1 << 17, checkpoint_max_bytes=1 << 30, reserve_bytes=1 << 16, read_threads=1
)
RUNS = 3
TRANSACTIONS_OF_A_RUN = 14
OPEN_FOR_S = 3 * 3600.0
FAR_MS = 4_000_000_000_000
CHANGED_MS = FAR_MS + 5000
PATIENCE_S = 20.0

Place = tuple[int, int]


class Fate(StrEnum):
    """What becomes of a message."""

    PLAIN = "plain"
    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "open"


@dataclass
class Sent:
    """One message, and the transaction that it was sent in."""

    value: bytes
    fate: Fate
    txn: TxnId | None = None


@dataclass
class Promised:
    """What clients were told, by topic and position."""

    sent: dict[str, dict[Place, Sent]] = field(default_factory=lambda: {topic: {} for topic in TOPICS})
    acked: dict[str, set[Place]] = field(default_factory=lambda: {topic: set() for topic in TOPICS})
    held: dict[Place, TxnId] = field(default_factory=dict)
    """Messages of `in` that open transactions have acknowledged."""
    changed: dict[Place, int] = field(default_factory=dict)
    """Delivery times of messages of `late` that were changed."""


@dataclass(frozen=True)
class Wrong:
    """A broken promise: at which position, and of which subscription or transaction."""

    topic: str
    place: Place | None
    text: str
    is_ack: bool = False
    txn: TxnId | None = None

    def __str__(self) -> str:
        of = "" if self.txn is None else f" of transaction {self.txn}"
        return f"{self.topic} {self.place}{of}: {self.text}"


# --- making it ---------------------------------------------------------------------------------------------------------


KILLED, RECOVERED = "killed", "recovered"
"""With a journal behind the table; and after one more start and kill, so that the table has everything."""


def make(directory: Path) -> Promised:
    """Make the two directories below `directory`."""
    promised = Promised()
    broker = BrokerProcess(directory, SETTINGS)
    random = Random(1)
    for run in range(RUNS):
        broker.start()
        try:
            asyncio.run(_traffic(broker, promised, random, run))
        finally:
            if run:
                broker.kill()
        if not run:
            assert broker.stop() == 0
    copy_data_directory(broker.data, directory / KILLED)
    broker.start()
    broker.kill()
    copy_data_directory(broker.data, directory / RECOVERED)
    return promised


async def _traffic(broker: BrokerProcess, promised: Promised, random: Random, run: int) -> None:
    async with connect(broker.url, operation_timeout_s=PATIENCE_S) as client:
        producers = {topic: await client.producer(topic, batching=False) for topic in TOPICS}
        consumer = await client.consumer(IN, SUBSCRIPTION, kind="shared", from_earliest=True)
        late = await client.consumer(LATE, SUBSCRIPTION, kind="shared", from_earliest=True)
        for number in range(40):
            await _send(promised, producers, IN, b"in %d %d" % (run, number))
        received = [await consumer.receive(PATIENCE_S) for _ in range(36)]
        random.shuffle(received)
        for message in received[:12]:
            await consumer.ack(message, wants_receipt=True)
            promised.acked[IN].add(_place(message))
        left = received[12:]
        topics = (OUT, SIDE, OUT) if run == RUNS - 1 else (OUT, OUT)
        for number in range(TRANSACTIONS_OF_A_RUN):
            fate = random.choices((Fate.COMMITTED, Fate.ABORTED, Fate.OPEN), (6, 3, 2))[0]
            await _transaction(client, promised, producers, consumer, left, fate, b"%d %d" % (run, number), topics)
            await _send(promised, producers, OUT, b"plain %d %d" % (run, number))
            await _send(promised, producers, SIDE, b"plain %d %d" % (run, number))
        await _delays(broker, promised, producers[LATE], late, run)
        await _until_all_ended(broker, promised)
        await asyncio.sleep(0.3)  # a snapshot of transactions is due


async def _send(promised: Promised, producers: dict[str, MessageProducer], topic: str, value: bytes) -> None:
    sent = await producers[topic].send(value)
    promised.sent[topic][sent.ledger_id, sent.entry_id] = Sent(value, Fate.PLAIN)


async def _transaction(
    client: PulsarClient,
    promised: Promised,
    producers: dict[str, MessageProducer],
    consumer: MessageConsumer,
    left: list[Message],
    fate: Fate,
    name: bytes,
    topics: tuple[str, ...],
) -> None:
    transaction = await client.transaction(OPEN_FOR_S)
    txn = TxnId(*transaction.id)
    for topic in topics:
        sent = await producers[topic].send(name, transaction=transaction)
        promised.sent[topic][sent.ledger_id, sent.entry_id] = Sent(name, fate, txn)
    message = left.pop()
    await consumer.ack(message, transaction=transaction)
    if fate is Fate.COMMITTED:
        await transaction.commit()
        promised.acked[IN].add(_place(message))
    elif fate is Fate.ABORTED:
        await transaction.abort()
    else:
        promised.held[_place(message)] = txn


async def _delays(
    broker: BrokerProcess, promised: Promised, producer: MessageProducer, consumer: MessageConsumer, run: int
) -> None:
    for number in range(10):
        value = b"late %d %d" % (run, number)
        sent = await producer.send(value, deliver_at_ms=0 if number % 2 else FAR_MS)
        promised.sent[LATE][sent.ledger_id, sent.entry_id] = Sent(value, Fate.PLAIN)
        if number == 4:
            path = f"admin/v2/persistent/public/default/{LATE}/subscription/{SUBSCRIPTION}/message"
            url = f"{broker.http_url}/{path}/{sent.ledger_id}/{sent.entry_id}/delay"
            answer = await asyncio.to_thread(call, url, "PUT", body={"deliverAt": CHANGED_MS})
            assert answer.status < 300, answer
            promised.changed[sent.ledger_id, sent.entry_id] = CHANGED_MS
    for _ in range(3):
        message = await consumer.receive(PATIENCE_S)
        await consumer.ack(message, wants_receipt=True)
        promised.acked[LATE].add(_place(message))


async def _until_all_ended(broker: BrokerProcess, promised: Promised) -> None:
    """Until only those are left that stay open."""
    wanted = len(promised.held)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            url = f"{broker.http_url}/admin/v3/transactions/coordinatorStats"
            stats = (await asyncio.to_thread(call, url)).json
            if sum(each["ongoingTxnSize"] for each in stats.values()) == wanted:
                return
            await asyncio.sleep(0.05)


def _place(message: Message) -> Place:
    return message.id.ledger_id, message.id.entry_id


# --- looking at it -----------------------------------------------------------------------------------------------------


async def look(directory: Path, promised: Promised) -> list[Wrong]:
    """Everything that is not as promised once the directory is opened as by a start. Raises StoreError when it is refused."""
    stores = await Stores.open(directory, OPTIONS)
    try:
        leftovers = await find_orphaned_ledgers(stores.store, stores.metadata, set(await stores.store.list_ledgers()))
        assert not leftovers.ids_not_given, leftovers
        assert not leftovers.lost_names(stores.store), leftovers
        wrong: list[Wrong] = []
        coordinators = await _coordinators(stores, wrong)
        for topic in TOPICS:
            if not await stores.factory.exists(ROOT + topic):
                wrong.append(Wrong(topic, None, "the topic is gone"))
                continue
            ledger = await stores.factory.open(ROOT + topic)
            await _look_at_messages(topic, ledger, promised, coordinators, wrong)
            await _look_at_acknowledgements(topic, ledger, promised, coordinators, wrong)
        return wrong
    finally:
        await stores.close()


async def _coordinators(stores: Stores, wrong: list[Wrong]) -> dict[int, CoordinatorState]:
    found: dict[int, CoordinatorState] = {}
    for number in range(64):
        path = f"/managed-ledgers/pulsar/system/persistent/__transaction_log_{number}"
        if await stores.factory.exists(path):
            state = found[number] = CoordinatorState(number)
            try:
                log = await TransactionLog.open(stores.factory, path, state.apply, lambda _: None)
            except StoreError as error:
                wrong.append(Wrong(f"__transaction_log_{number}", None, f"the coordinator does not serve: {error}"))
                continue
            await log.close()
    return found


def _live(coordinators: dict[int, CoordinatorState], txn: TxnId) -> Transaction | None:
    state = coordinators.get(txn.most)
    return None if state is None else state.find(txn.least)


async def _look_at_messages(
    topic: str,
    ledger: ManagedLedger,
    promised: Promised,
    coordinators: dict[int, CoordinatorState],
    wrong: list[Wrong],
) -> None:
    buffer = await recover(ledger, Clock(), 0)
    open_at = {} if buffer is None else {txn: each.entries for txn, each in buffer.open.items()}
    hidden = {} if buffer is None else buffer.hidden
    wrong += [
        Wrong(topic, None, "is open for ever, and holds back what follows", txn=txn)
        for txn in open_at
        if _live(coordinators, txn) is None
    ]
    for most, least in ({} if buffer is None else buffer.highest_ids()).items():
        if most not in coordinators or coordinators[most].last_least < least:
            wrong.append(Wrong(topic, None, "its id will be given again", txn=TxnId(most, least)))
    for place, sent in promised.sent[topic].items():
        payload = await _payload(ledger, place)
        if payload is None:
            wrong.append(Wrong(topic, place, "is not there", txn=sent.txn))
            continue
        if payload[metadata_span(payload)[1] :] != sent.value:
            wrong.append(Wrong(topic, place, f"is {payload!r} instead of {sent.value!r}"))
        is_hidden = place[1] in hidden.get(place[0], ())
        is_open = sent.txn is not None and place[1] in open_at.get(sent.txn, {}).get(place[0], ())
        live = None if sent.txn is None else _live(coordinators, sent.txn)
        if is_open and live is not None:
            fate = {Status.COMMITTING: Fate.COMMITTED, Status.ABORTING: Fate.ABORTED}.get(live.status, Fate.OPEN)
        else:
            fate = Fate.ABORTED if is_hidden else Fate.OPEN if is_open else Fate.COMMITTED
        wanted = Fate.COMMITTED if sent.fate is Fate.PLAIN else sent.fate
        # What the coordinator has open it aborts in time.
        if fate is not wanted and (fate, wanted) != (Fate.OPEN, Fate.ABORTED):
            wrong.append(Wrong(topic, place, f"was {sent.fate} and is {fate}", txn=sent.txn))


async def _payload(ledger: ManagedLedger, place: Place) -> bytes | None:
    if not ledger.ledgers.has_entry(Position(*place)):
        return None
    try:
        return (await ledger.read(Position(*place), 1, 1 << 20)).payloads[0]
    except (DamagedEntries, NoSuchLedger, StoreError):
        return None


def _is_held(hold: Hold, place: Place) -> bool:
    return place[1] in hold.entries.get(place[0], ()) or Position(*place) in hold.parts


async def _look_at_acknowledgements(
    topic: str,
    ledger: ManagedLedger,
    promised: Promised,
    coordinators: dict[int, CoordinatorState],
    wrong: list[Wrong],
) -> None:
    if topic not in (IN, LATE):
        return
    cursor = ledger.cursors.get(SUBSCRIPTION)
    if cursor is None:
        wrong.append(Wrong(topic, None, "has lost its subscription"))
        return
    held = cursor.state.held.open
    wrong += [
        Wrong(topic, None, "holds acknowledgements for ever", is_ack=True, txn=txn)
        for txn in held
        if _live(coordinators, txn) is None
    ]
    for place in promised.sent[topic]:
        if not ledger.ledgers.has_entry(Position(*place)):
            continue
        is_acked = cursor.state.is_deleted(*place)
        holders = [txn for txn, hold in held.items() if _is_held(hold, place)]
        live = None if not holders else _live(coordinators, holders[0])
        will_be = is_acked or (live is not None and live.status is Status.COMMITTING)
        if place in promised.acked[topic] and not will_be:
            wrong.append(Wrong(topic, place, "is acknowledged no more", is_ack=True))
        if place not in promised.acked[topic] and will_be:
            wrong.append(Wrong(topic, place, "was never acknowledged", is_ack=True))
        if holders and promised.held.get(place) != holders[0]:
            wrong.append(Wrong(topic, place, f"is held by {holders[0]}", is_ack=True, txn=holders[0]))
        if place in promised.held and holders == []:
            wrong.append(Wrong(topic, place, "is held no more", is_ack=True, txn=promised.held[place]))
    if topic == LATE:
        _look_at_delays(cursor.stored_delayed, promised, wrong)


def _look_at_delays(records: list[bytes], promised: Promised, wrong: list[Wrong]) -> None:
    changes = {tuple(place): due_ms for place, due_ms in stored_changes(records).items()}
    for place, due_ms in promised.changed.items():
        if changes.get(place) != due_ms and place not in promised.acked[LATE]:
            wrong.append(Wrong(LATE, place, "its changed delivery time is lost", is_ack=True))
    for run in stored_runs(records):
        for each in run.left():
            is_delayed = (each.ledger_id, each.entry_id) in promised.sent[LATE]
            if is_delayed and each.due_ms not in (FAR_MS, CHANGED_MS):
                wrong.append(Wrong(LATE, (each.ledger_id, each.entry_id), f"waits until {each.due_ms}"))
