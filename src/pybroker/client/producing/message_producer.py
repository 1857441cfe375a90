"""A producer of messages on a topic and all its partitions, with batching and chunking.

Invariants: messages of one partition are stored in the order of submission; each ends with its id or an error. A task
of the producer sends them, so cancelling a caller does not affect the messages of other callers.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pybroker.client.client import Client, ClientPart, TopicSchema
from pybroker.client.client_transactions import Transaction
from pybroker.client.failures import NotSent
from pybroker.client.message import MessageId, OutgoingMessage
from pybroker.client.producing.entry_producer import (
    MAX_PENDING_BYTES,
    MAX_PENDING_ENTRIES,
    SEND_TIMEOUT_S,
    EntryId,
    Producer,
    ProducerSettings,
    open_producer,
)
from pybroker.client.producing.packing import PackedEntry, Packing, pack_batch, pack_large, pack_one
from pybroker.encryption.encryption_errors import CannotEncrypt
from pybroker.model.hashing import java_string_hash, key_hash
from pybroker.model.names import TopicName
from pybroker.runtime import logs
from pybroker.runtime.tasks import TaskOwner
from pybroker.wire import pulsar_api_pb2 as pb

if TYPE_CHECKING:
    from pybroker.client.message_crypto import MessageCrypto
    from pybroker.encryption.payload_encryption import PayloadEncryptor

DATA_KEY_LIFETIME_S = 4 * 3600.0
"""How long a producer uses a data key, as in Pulsar's clients."""


@dataclass(frozen=True)
class Publishing:
    """The options of a message producer."""

    name: str = ""
    """Empty: the broker assigns a name."""
    access_mode: pb.ProducerAccessMode = pb.Shared
    properties: Mapping[str, str] = field(default_factory=dict)
    """The metadata of the producer in the statistics of the topic."""
    is_encrypted: bool = False
    """All messages are encrypted by the caller. Topics that require encryption accept only such producers."""
    crypto: MessageCrypto | None = None
    """Encrypts all messages that the caller has not encrypted, for the public keys `encryption_keys`."""
    encryption_keys: tuple[str, ...] = ()
    """The names of the public keys. Any of their private keys can decrypt the messages."""
    initial_subscription: str = ""
    """A durable subscription that the broker creates with a new topic. Empty: none."""
    initial_sequence_id: int | None = None
    """The first message has the next sequence id. None: the last sequence id of the name, as the topic reports it."""
    schema: TopicSchema | None = None
    compression: pb.CompressionType = pb.NONE
    is_batching: bool = True
    batch_delay_s: float = 0.001
    """How long a batch waits for more messages while others are pending. If nothing is pending, it is sent at once."""
    max_batch_messages: int = 1000
    max_batch_bytes: int = 128 * 1024
    batch_by_key: bool = False
    """A batch has messages of one key only, as Key_Shared subscriptions require."""
    is_chunking: bool = False
    """Messages that are too large for the broker are sent in chunks instead of being refused."""
    hashes_by_murmur: bool = False
    """Murmur3 selects the partition of a key instead of Java's string hash, the default of the official clients."""
    is_single_partition: bool = False
    """Messages without a key go to one partition, chosen at random, instead of to all in turn."""
    max_pending_entries: int = MAX_PENDING_ENTRIES
    max_pending_bytes: int = MAX_PENDING_BYTES
    """Limit of unsent and unanswered bytes per partition. `submit` waits above it."""
    send_timeout_s: float = SEND_TIMEOUT_S
    """A message without a response for this time fails with RequestTimedOut; the producer continues. 0 disables the
    timeout.
    """


@dataclass(slots=True)
class _Batch:
    transaction: Transaction | None
    messages: list[OutgoingMessage] = field(default_factory=list)
    receipts: list[asyncio.Future[MessageId]] = field(default_factory=list)
    size_bytes: int = 0
    is_alone: bool = False
    """The batch is one message that must not be sent in the batch format."""

    def split(self) -> list[_Batch]:
        each = zip(self.messages, self.receipts, strict=True)
        return [_Batch(self.transaction, [message], [receipt], message.size_bytes) for message, receipt in each]


class PartitionPublisher:
    """Sends the messages of one partition for a `MessageProducer`."""

    def __init__(self, producer: Producer, partition: int, settings: Publishing, tasks: TaskOwner) -> None:
        self.producer = producer
        self.encryptor: PayloadEncryptor | None = None
        """Set if this client encrypts the messages."""
        self._partition = partition
        self._settings = settings
        self._open: dict[str | None, _Batch] = {}  # by key if batches are separated by key
        self._ready: deque[_Batch] = deque()
        self._queued_bytes = 0
        last_sequence_id = settings.initial_sequence_id
        self._next_sequence_id = (producer.last_sequence_id if last_sequence_id is None else last_sequence_id) + 1
        self._unanswered = 0
        self._is_sending = False
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        tasks.start(self._send_all(), f"messages to {producer.topic}")

    @property
    def is_full(self) -> bool:
        """Whether the last batch is complete and no new one has begun. A message without a key may then go to another
        partition.
        """
        return not self._open

    async def submit(self, message: OutgoingMessage, transaction: Transaction | None) -> asyncio.Future[MessageId]:
        """Queue a message when capacity is available. Return a future of its id."""
        if message.sequence_id is not None and self._settings.batch_by_key:
            raise NotSent(
                "the message was not sent: custom sequence ids cannot be used with batching by key, because "
                "these batches are not sent in the order of the messages"
            )
        if transaction is not None:
            await transaction.topic_takes_part(str(self.producer.topic))
        while self._queued_bytes > self._settings.max_pending_bytes and not self._is_closed:
            self._changed.clear()
            await self._changed.wait()
        if self._is_closed:
            raise self._not_sent()
        if transaction is not None:
            transaction.require_open()
        receipt: asyncio.Future[MessageId] = asyncio.get_running_loop().create_future()
        receipt.add_done_callback(self._answered)
        self._unanswered += 1
        if transaction is not None:
            transaction.watch(receipt)
        self._add(message, receipt, transaction)
        return receipt

    def _add(
        self, message: OutgoingMessage, receipt: asyncio.Future[MessageId], transaction: Transaction | None
    ) -> None:
        settings = self._settings
        size_bytes = message.size_bytes
        self._queued_bytes += size_bytes
        is_special = message.deliver_at_ms or message.replicate_to or message.encryption is not None
        if not settings.is_batching or is_special or size_bytes > settings.max_batch_bytes:
            self.close_batches()
            batch = _Batch(transaction, [message], [receipt], size_bytes, is_alone=True)
            self._ready.append(batch)
            self._wake.set()
            return
        key = message.key if settings.batch_by_key else None
        batch_of_key = self._open.get(key)
        if batch_of_key is not None and (
            batch_of_key.transaction is not transaction
            or batch_of_key.size_bytes + size_bytes > settings.max_batch_bytes
        ):
            self.close_batches()
            batch_of_key = None
        if batch_of_key is None:
            batch_of_key = self._open[key] = _Batch(transaction)
        batch_of_key.messages.append(message)
        batch_of_key.receipts.append(receipt)
        batch_of_key.size_bytes += size_bytes
        is_idle = not self._is_sending and not self._ready and not self.producer.pending_entries
        if is_idle or len(batch_of_key.messages) >= settings.max_batch_messages:
            self.close_batches()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(settings.batch_delay_s, self.close_batches)

    def close_batches(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._ready.extend(self._open.values())
        self._open = {}
        self._wake.set()

    def _answered(self, receipt: asyncio.Future[MessageId]) -> None:
        self._unanswered -= 1
        if not receipt.cancelled():
            receipt.exception()  # mark as retrieved: the caller need not await it
        self._changed.set()

    async def flush(self) -> None:
        self.close_batches()
        while self._unanswered:
            self._changed.clear()
            await self._changed.wait()

    # --- the sending task

    async def _send_all(self) -> None:
        while True:
            while not self._ready:
                self._is_sending = False
                self._wake.clear()
                await self._wake.wait()
            self._is_sending = True
            batch = self._ready.popleft()
            next_sequence_id = self._next_sequence_id
            try:
                entries = self._pack(batch)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with a message
                if len(batch.messages) > 1:  # the other messages may be valid
                    self._next_sequence_id = next_sequence_id
                    self._ready.extendleft(reversed(batch.split()))
                else:
                    self._fail(batch, error)
                    self._done_with(batch)
                continue
            try:
                await self._send(batch, entries)
            except asyncio.CancelledError:
                self._fail(batch, self._not_sent())
                self.fail_all()
                raise
            except Exception as error:  # noqa: BLE001 - told to those who wait for the messages
                self._fail(batch, error)
            self._done_with(batch)

    def _done_with(self, batch: _Batch) -> None:
        self._queued_bytes -= batch.size_bytes
        self._changed.set()

    async def _send(self, batch: _Batch, entries: list[PackedEntry]) -> None:
        txn = None if batch.transaction is None else batch.transaction.id
        answers: list[asyncio.Future[EntryId]] = []
        answered = 0
        for entry in entries:
            while answered < len(answers) and answers[answered].done():
                if (failure := answers[answered].exception()) is not None:
                    raise failure  # no consumer can use the remaining chunks
                answered += 1
            answers += [
                await self.producer.send(
                    entry.data,
                    entry.sequence_id,
                    highest_sequence_id=entry.highest_sequence_id,
                    message_count=entry.message_count,
                    is_chunk=entry.is_chunk,
                    txn=txn,
                )
            ]
        answers[-1].add_done_callback(lambda _: self._stored(batch, answers))

    def _pack(self, batch: _Batch) -> list[PackedEntry]:
        settings, producer = self._settings, self.producer
        packing = Packing(producer.name, settings.compression, producer.schema_version, self.encryptor)
        now_ms = int(time.time() * 1000)
        sequence_ids = [self._sequence_id(message) for message in batch.messages]
        txn = None if batch.transaction is None else batch.transaction.id
        if not batch.is_alone:
            return [pack_batch(packing, batch.messages, sequence_ids, now_ms, txn)]
        if not settings.is_chunking:
            return [pack_one(packing, batch.messages[0], sequence_ids[0], now_ms, txn)]
        most = producer.max_message_bytes
        return list(pack_large(packing, batch.messages[0], sequence_ids[0], now_ms, most, txn))

    def _sequence_id(self, message: OutgoingMessage) -> int:
        given = message.sequence_id
        if given is not None and given < self._next_sequence_id:
            raise NotSent(
                f"the message was not sent: its sequence id {given} is not larger than the previous sequence id "
                f"{self._next_sequence_id - 1}"
            )
        found = self._next_sequence_id if given is None else given
        self._next_sequence_id = found + 1
        return found

    def _stored(self, batch: _Batch, answers: list[asyncio.Future[EntryId]]) -> None:
        first, last = answers[0], answers[-1]
        failure = last.exception() or next((each.exception() for each in answers if each.exception()), None)
        if failure is not None:
            self._fail(batch, failure)
            return
        at = last.result()
        count = len(batch.messages)
        for index, receipt in enumerate(batch.receipts):
            if receipt.done():
                continue
            if batch.is_alone:
                first_chunk = (first.result().ledger_id, first.result().entry_id) if first is not last else None
                receipt.set_result(MessageId(at.ledger_id, at.entry_id, self._partition, first_chunk=first_chunk))
            else:
                receipt.set_result(MessageId(at.ledger_id, at.entry_id, self._partition, index, count))

    def _fail(self, batch: _Batch, failure: BaseException) -> None:
        for receipt in batch.receipts:
            if not receipt.done():
                receipt.set_exception(failure)

    def fail_all(self) -> None:
        """Reject new messages, and make all unsent messages fail with NotSent."""
        self._is_closed = True
        self.close_batches()
        while self._ready:
            self._fail(self._ready.popleft(), self._not_sent())
        self._changed.set()

    def _not_sent(self) -> NotSent:
        return NotSent(f"the producer on {self.producer.topic} is closed")


class MessageProducer(ClientPart):
    """A producer of messages. An asynchronous context manager; a caller that does not use `async with` must call
    `close`. Created by `open_message_producer`.
    """

    def __init__(
        self,
        client: Client,
        topic: TopicName,
        settings: Publishing,
        partitions: list[PartitionPublisher],
        tasks: TaskOwner,
    ) -> None:
        self.topic = topic
        self._settings = settings
        self._partitions = partitions
        self._tasks = tasks
        self._turn = random.randrange(len(partitions)) if settings.is_single_partition else 0
        self._client = client
        client.parts[self] = None

    @property
    def name(self) -> str:
        return self._partitions[0].producer.name

    @property
    def failure(self) -> Exception | None:
        """The error that ended the producer of a partition; None while all work."""
        return next((each.producer.failure for each in self._partitions if each.producer.failure is not None), None)

    @property
    def last_sequence_id(self) -> int:
        """The highest sequence id that any partition has stored for this producer name, as the broker reported it when
        the producer attached; -1 if there is none.
        """
        return max(each.producer.last_sequence_id for each in self._partitions)

    async def send(
        self,
        value: bytes | None,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int = 0,
        deliver_at_ms: int = 0,
        ordering_key: bytes | None = None,
        sequence_id: int | None = None,
        transaction: Transaction | None = None,
    ) -> MessageId:
        """Send a message, and return its id when it is stored. Raises the error of the broker or the client if the
        message is not stored. Times are in milliseconds since 1970; 0 means that there is none.
        """
        message = OutgoingMessage(
            value,
            key,
            ordering_key=ordering_key,
            properties=properties or {},
            event_time_ms=event_time_ms,
            deliver_at_ms=deliver_at_ms,
            sequence_id=sequence_id,
        )
        return await (await self.submit(message, transaction))

    async def submit(
        self, message: OutgoingMessage, transaction: Transaction | None = None
    ) -> asyncio.Future[MessageId]:
        """Queue a message after all earlier messages of its partition, when capacity is available. Return a future of
        its id.
        """
        if len(self._partitions) == 1:
            return await self._partitions[0].submit(message, transaction)
        if message.key is not None:
            hashed = key_hash if self._settings.hashes_by_murmur else java_string_hash
            index = (hashed(message.key.encode()) & 0x7FFF_FFFF) % len(self._partitions)
            return await self._partitions[index].submit(message, transaction)
        if (
            self._partitions[self._turn].is_full and not self._settings.is_single_partition
        ):  # round-robin, but in whole batches
            self._turn = (self._turn + 1) % len(self._partitions)
        return await self._partitions[self._turn].submit(message, transaction)

    def encrypt(self, crypto: MessageCrypto, encryptor: PayloadEncryptor) -> None:
        """Encrypt all following messages with the data key of `encryptor`, and later with new data keys: `crypto`
        creates one every 4 hours (DATA_KEY_LIFETIME_S).
        """
        self._set_encryptor(encryptor)
        self._tasks.start(self._renew_data_key(crypto), "data key")

    def _set_encryptor(self, encryptor: PayloadEncryptor) -> None:
        for each in self._partitions:
            each.encryptor = encryptor

    async def _renew_data_key(self, crypto: MessageCrypto) -> None:
        while True:
            await asyncio.sleep(DATA_KEY_LIFETIME_S)
            try:
                self._set_encryptor(await crypto.encryptor(self._settings.encryption_keys))
            except CannotEncrypt as error:  # the former data key stays in use, as in Pulsar's clients
                logs.warning("client.data_key_not_renewed", topic=self.topic, reason=error)

    async def flush(self) -> None:
        """Wait until the broker has answered all submitted messages. Only the future of a message reports its
        failure.
        """
        for each in self._partitions:
            await each.flush()

    async def close(self) -> None:
        try:
            await self.flush()
        finally:
            self._client.parts.pop(self, None)
            await self.client_closed()
            for each in self._partitions:
                await each.producer.close()

    async def client_closed(self) -> None:
        await self._tasks.close()
        for each in self._partitions:
            each.fail_all()


async def open_message_producer(client: Client, topic: TopicName, settings: Publishing) -> MessageProducer:
    """Create a producer on `topic` and all its partitions. Raises CannotEncrypt if a public key of
    `settings.encryption_keys` cannot be used, and the errors of `open_producer`.
    """
    crypto = settings.crypto
    encryptor = None if crypto is None else await crypto.encryptor(settings.encryption_keys)
    if settings.is_batching and settings.is_chunking:
        settings = replace(settings, is_batching=False)  # a chunked message cannot be in a batch
    attach = ProducerSettings(
        settings.name,
        settings.access_mode,
        settings.properties,
        settings.is_encrypted or encryptor is not None,
        settings.initial_subscription,
        settings.schema,
        settings.max_pending_entries,
        settings.max_pending_bytes,
        settings.send_timeout_s,
        outlives_timeouts=True,
    )
    producers: list[Producer] = []
    tasks = TaskOwner("producer")
    try:
        for partition in await client.partitions(topic, may_create=True):
            producers += [await open_producer(client, partition, attach)]
    except BaseException:
        for producer in producers:
            await producer.close()
        raise
    partitions = [PartitionPublisher(each, each.topic.partition_index, settings, tasks) for each in producers]
    opened = MessageProducer(client, topic, settings, partitions, tasks)
    if crypto is not None and encryptor is not None:
        opened.encrypt(crypto, encryptor)
    return opened
