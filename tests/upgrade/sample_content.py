"""The content of a sample: traffic of the official client, REST calls and transactions, and what clients were told about them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pulsar
from pulsar import CompressionType, ConsumerType, InitialPosition, MessageId
from pulsar.schema import JsonSchema, Record, String
from tests.clients.conftest import new_client, until
from tests.support.broker_process import BrokerProcess
from tests.support.rest import call
from tests.upgrade.samples import Feature, Promised, StoredMessage, Subscription, text_of

from pybroker.client import Message, MessageProducer, Transaction, connect

PLAIN, PARTS, DELAYED, TYPED, ONCE, COMPACTED = "plain", "parts", "delayed", "typed", "once", "compacted"
TAKEN, SENT = "taken", "sent"
"""Transactions acknowledge messages of `taken` and send to `sent`."""
PARTITIONS = 3
FAR_MS = 4_000_000_000_000
DUE_AFTER_MS = 90_000
"""The sample is complete before these delayed messages are due, and it is opened after that."""
OPEN_FOR_S = 60.0
"""The coordinator aborts an open transaction after this time, at the latest when the sample is opened."""
PATIENCE_S = 30.0
KEYS = 5
FIXED = "fixed"
SETTING = ("maxConcurrentLookupRequest", "88")
NAMESPACE = "namespaces/sample/kept"
POLICIES: tuple[tuple[str, str, object], ...] = (
    ("PUT", "tenants/sample", {"adminRoles": ["operator"], "allowedClusters": ["standalone"]}),
    ("PUT", NAMESPACE, {}),
    ("POST", f"{NAMESPACE}/retention", {"retentionTimeInMinutes": 70, "retentionSizeInMB": 7}),
    ("POST", f"{NAMESPACE}/messageTTL", 3600),
    ("POST", f"{NAMESPACE}/maxConsumersPerTopic", 12),
    ("POST", f"{NAMESPACE}/permissions/alice", ["produce"]),
    ("POST", f"persistent/public/default/{PLAIN}/maxConsumers", 30),
    ("POST", f"persistent/public/default/{PLAIN}/maxUnackedMessagesOnConsumer", 4000),
)
READ_BACK = (
    "tenants/sample",
    f"{NAMESPACE}/retention",
    f"{NAMESPACE}/messageTTL",
    f"{NAMESPACE}/maxConsumersPerTopic",
    f"{NAMESPACE}/permissions",
    f"persistent/public/default/{PLAIN}/maxConsumers",
    f"persistent/public/default/{PLAIN}/maxUnackedMessagesOnConsumer",
    f"persistent/public/default/{PARTS}/partitions",
    "brokers/configuration/values",
)
SCHEMAS = f"schemas/public/default/{TYPED}/schemas"


class Order(Record):
    """The second version of the schema of `typed`."""

    number = String()
    note = String(required_default=True)


class FirstOrder(Record):
    """The first version of the schema of `typed`."""

    number = String()


FirstOrder.__name__ = Order.__name__


def create(broker: BrokerProcess, features: frozenset[Feature], promised: Promised, run: int) -> None:
    """Add content to a running broker, in the run numbered from 0, and record it."""
    if run == 0:
        _policies(broker, features)
    client = new_client(broker.url)
    try:
        _plain(client, promised, run)
        _partitioned(client, promised, run)
        _delayed(broker, client, promised, run, Feature.CHANGED_DELIVERY in features)
        if Feature.SCHEMAS in features:
            _typed(client, promised, run)
        if Feature.DEDUPLICATION in features:
            _once(client, promised, run)
        if Feature.COMPACTION in features:
            _compacted(broker, client, promised, run)
    finally:
        client.close()
    if Feature.TRANSACTIONS in features:
        asyncio.run(_transactions(broker, promised, run))
    time.sleep(0.5)  # snapshots of transactions and of the deduplication are due
    for path in READ_BACK + ((SCHEMAS,) if Feature.SCHEMAS in features else ()):
        promised.answers[path] = rest(broker, "GET", path)
    for each in promised.subscriptions:
        if each.topic in (PLAIN, DELAYED):
            each.backlog = backlog(broker, each)


def backlog(broker: BrokerProcess, subscription: Subscription) -> int:
    """Return the number of entries in the backlog, from the stats of a topic without partitions."""
    stats: Any = rest(broker, "GET", f"persistent/public/default/{subscription.topic}/stats")
    return int(stats["subscriptions"][subscription.name]["msgBacklog"])


def rest(broker: BrokerProcess, method: str, path: str, body: object = None) -> object:
    """A REST call that must succeed; its JSON, or None."""
    answer = call(f"{broker.http_url}/admin/v2/{path}", method, body=body)
    assert answer.status < 300, (method, path, answer)
    return answer.json if answer.text else None


def id_text(message_id: MessageId) -> str:
    return f"{message_id.ledger_id()}:{message_id.entry_id()}:{message_id.batch_index()}"


def _policies(broker: BrokerProcess, features: frozenset[Feature]) -> None:
    rest(broker, "PUT", f"persistent/public/default/{PARTS}/partitions", PARTITIONS)
    rest(broker, "PUT", f"persistent/public/default/{PLAIN}")
    for method, path, body in POLICIES:
        rest(broker, method, path, body)
    rest(broker, "POST", "brokers/configuration/" + "/".join(SETTING))
    if Feature.DEDUPLICATION in features:
        rest(broker, "PUT", f"persistent/public/default/{ONCE}")
        rest(broker, "POST", f"persistent/public/default/{ONCE}/deduplicationEnabled", True)


class _Sender:
    """Sends numbered texts and records them with their message ids."""

    def __init__(self, client: pulsar.Client, promised: Promised, topic: str, run: int) -> None:
        self._client = client
        self._promised = promised
        self._topic = topic
        self._run = run
        self.count = 0

    def next_text(self) -> str:
        self.count += 1
        return f"{self._topic} {self._run} {self.count - 1}"

    def single(self, count: int, **options: object) -> None:
        producer = self._client.create_producer(self._topic, batching_enabled=False, **options)
        for _ in range(count):
            text = self.next_text()
            self.record(producer.send(text.encode(), partition_key=f"k{self.count % KEYS}"), text)
        producer.close()

    def batch(self, count: int, compression: CompressionType) -> None:
        producer = self._client.create_producer(
            self._topic,
            batching_enabled=True,
            batching_max_publish_delay_ms=10_000,
            compression_type=compression,
        )
        receipts: list[tuple[str, MessageId]] = []

        def received(text: str) -> Callable[[object, MessageId], None]:
            return lambda _, message_id: receipts.append((text, message_id))

        for _ in range(count):
            text = self.next_text()
            producer.send_async(text.encode(), received(text))
        producer.flush()
        producer.close()
        assert len(receipts) == count, "each message has a receipt"
        for text, message_id in receipts:
            self.record(message_id, text)

    def chunks(self) -> None:
        producer = self._client.create_producer(self._topic, batching_enabled=False, chunking_enabled=True)
        payload = f"{self.next_text()} ".encode() * 4000
        self.record(producer.send(payload), text_of(payload))
        producer.close()

    def record(self, message_id: MessageId, text: str) -> None:
        partition = message_id.partition()
        topic = self._topic if partition < 0 else f"{self._topic}-partition-{partition}"
        self._promised.messages.setdefault(topic, []).append(StoredMessage(id_text(message_id), text))


def _plain(client: pulsar.Client, promised: Promised, run: int) -> None:
    individual = promised.subscription(PLAIN, "individual")
    cumulative = promised.subscription(PLAIN, "cumulative", is_shared=False)
    for name in (individual.name, cumulative.name):
        client.subscribe(PLAIN, name, initial_position=InitialPosition.Earliest).close()
    sender = _Sender(client, promised, PLAIN, run)
    known = len(promised.messages.get(PLAIN, ()))
    sender.single(6)
    sender.batch(10, CompressionType.NONE)
    for compression in (CompressionType.LZ4, CompressionType.ZLib, CompressionType.ZSTD, CompressionType.SNAPPY):
        sender.batch(8, compression)
    sender.chunks()
    sender.single(3)
    sent = [message.text for message in promised.messages[PLAIN][known:]]
    for subscription in (individual, cumulative):
        subscription.left += sent
    _acknowledge(client, individual, [text for number, text in enumerate(sent) if number % 3])
    consumer = client.subscribe(PLAIN, cumulative.name, batch_index_ack_enabled=True)
    last = sent[12]  # in the middle of a batch
    while text_of((message := consumer.receive(30_000)).data()) != last:
        pass
    consumer.acknowledge_cumulative(message)
    consumer.close()
    cumulative.left = cumulative.left[cumulative.left.index(last) + 1 :]
    sender.single(1)  # Its receipt covers the acknowledgements before it.
    for subscription in (individual, cumulative):
        subscription.left.append(promised.messages[PLAIN][-1].text)


def _acknowledge(client: pulsar.Client, subscription: Subscription, texts: list[str]) -> None:
    """Acknowledge these messages one by one, by a consumer that is closed at the end."""
    consumer = client.subscribe(
        subscription.topic,
        subscription.name,
        ConsumerType.Shared,
        batch_index_ack_enabled=True,
    )
    wanted = set(texts)
    while wanted:
        message = consumer.receive(30_000)
        if (text := text_of(message.data())) in wanted:
            wanted.remove(text)
            consumer.acknowledge(message)
    consumer.close()
    subscription.left = [text for text in subscription.left if text not in set(texts)]


def _partitioned(client: pulsar.Client, promised: Promised, run: int) -> None:
    subscription = promised.subscription(PARTS, "s")
    client.subscribe(PARTS, "s", ConsumerType.Shared, initial_position=InitialPosition.Earliest).close()
    sender = _Sender(client, promised, PARTS, run)
    sender.single(12)
    sent = [f"{PARTS} {run} {number}" for number in range(12)]
    subscription.left += sent
    _acknowledge(client, subscription, sent[::2])


def _delayed(broker: BrokerProcess, client: pulsar.Client, promised: Promised, run: int, is_changed: bool) -> None:
    subscription = promised.subscription(DELAYED, "s")
    consumer = client.subscribe(DELAYED, "s", ConsumerType.Shared, initial_position=InitialPosition.Earliest)
    sender = _Sender(client, promised, DELAYED, run)
    producer = client.create_producer(DELAYED, batching_enabled=False)
    soon_ms = int(time.time() * 1000) + DUE_AFTER_MS
    for number in range(10):
        text = sender.next_text()
        due_ms = soon_ms if number == 9 else None if number % 2 else FAR_MS
        message_id = producer.send(text.encode(), deliver_at=due_ms)
        sender.record(message_id, text)
        (subscription.delayed if due_ms == FAR_MS else subscription.left).append(text)
        if is_changed and number == 4:
            place = f"{message_id.ledger_id()}/{message_id.entry_id()}"
            path = f"persistent/public/default/{DELAYED}/subscription/s/message/{place}/delay"
            rest(broker, "PUT", path, {"deliverAt": soon_ms})
            subscription.delayed.remove(text)
            subscription.left.append(text)
    producer.close()
    consumer.close()
    _acknowledge(client, subscription, [f"{DELAYED} {run} {number}" for number in (1, 3)])


def _typed(client: pulsar.Client, promised: Promised, run: int) -> None:
    sender = _Sender(client, promised, TYPED, run)
    for kind in (FirstOrder, Order):
        schema = JsonSchema(kind)
        producer = client.create_producer(TYPED, schema=schema)
        order = kind(number=sender.next_text())
        sender.record(producer.send(order), text_of(schema.encode(order)))
        producer.close()


def _once(client: pulsar.Client, promised: Promised, run: int) -> None:
    sender = _Sender(client, promised, ONCE, run)
    producer = client.create_producer(ONCE, FIXED, batching_enabled=False)
    for _ in range(10):
        text = sender.next_text()
        promised.sequence_ids[ONCE] = promised.sequence_ids.get(ONCE, 0) + 1
        sender.record(producer.send(text.encode(), sequence_id=promised.sequence_ids[ONCE]), text)
    producer.close()


def _compacted(broker: BrokerProcess, client: pulsar.Client, promised: Promised, run: int) -> None:
    sender = _Sender(client, promised, COMPACTED, run)
    view = dict(promised.compacted.get(COMPACTED, ()))

    def send(number: int) -> None:
        producer = client.create_producer(COMPACTED, batching_enabled=False)
        for _ in range(number):
            text = sender.next_text()
            key = f"k{sender.count % KEYS}"
            sender.record(producer.send(text.encode(), partition_key=key), text)
            view.pop(key, None)
            view[key] = text
            promised.compacted.setdefault(COMPACTED, []).append((key, text))
        producer.close()

    send(3 * KEYS)
    compact(broker)
    promised.compacted[COMPACTED] = list(view.items())
    send(2)


def compact(broker: BrokerProcess) -> None:
    """Compact the topic `compacted` and wait for the end."""
    path = f"persistent/public/default/{COMPACTED}/compaction"
    rest(broker, "PUT", path)
    until(lambda: rest(broker, "GET", path) == {"status": "SUCCESS", "lastError": ""})


async def _transactions(broker: BrokerProcess, promised: Promised, run: int) -> None:
    taken, sent = promised.subscription(TAKEN, "s"), promised.subscription(SENT, "s")
    async with connect(broker.url, operation_timeout_s=PATIENCE_S) as client:
        consumer = await client.consumer(TAKEN, "s", kind="shared", from_earliest=True)
        await (await client.consumer(SENT, "s", kind="shared", from_earliest=True)).close()
        to_taken = await client.producer(TAKEN, batching=False)
        to_sent = await client.producer(SENT, batching=False)
        for number in range(8):
            taken.left.append(await _send(promised, to_taken, TAKEN, f"{TAKEN} {run} {number}"))
        received: list[Message] = []
        while len(received) < 6:
            message = await consumer.receive(PATIENCE_S)
            if message.value is not None and message.value.startswith(f"{TAKEN} {run} ".encode()):
                received.append(message)
        for end in ("committed", "aborted", "open"):
            transaction = await client.transaction(OPEN_FOR_S)
            for number in range(2):
                text = f"{SENT} {run} {end} {number}"
                if end == "committed":
                    sent.left.append(await _send(promised, to_sent, SENT, text, transaction))
                else:
                    await to_sent.send(text.encode(), transaction=transaction)
                message = received.pop()
                await consumer.ack(message, transaction=transaction)
                if end == "committed":
                    taken.left.remove((message.value or b"").decode())
            if end == "committed":
                await transaction.commit()
            elif end == "aborted":
                await transaction.abort()
            sent.left.append(await _send(promised, to_sent, SENT, f"{SENT} {run} after {end}"))


async def _send(
    promised: Promised,
    producer: MessageProducer,
    topic: str,
    text: str,
    transaction: Transaction | None = None,
) -> str:
    sent = await producer.send(text.encode(), transaction=transaction)
    stored = StoredMessage(f"{sent.ledger_id}:{sent.entry_id}:{sent.batch_index}", text)
    promised.messages.setdefault(topic, []).append(stored)
    return text
