"""A producer of complete entries on one topic or partition.

It sends without waiting for receipts, and sends again after a lost connection.

Invariants: entries are stored in the order of `send`; each ends with its receipt or an error. An entry with a lost
response is sent again, which stores it twice unless the topic deduplicates by producer name and sequence id. In a
transaction, the entry fails instead, and the transaction with it.

Timeouts: an entry without a response for `send_timeout_s` fails. With `outlives_timeouts` the producer continues and
ignores late responses, which needs increasing sequence ids. Otherwise the producer fails, too, because some callers
need an unbroken sequence of entries.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from pybroker.client.client import Client, ClientPart, TopicSchema
from pybroker.client.client_connection import Connection, ConnectionUser
from pybroker.client.failures import ClientError, ConnectionLost, NotSent, RequestTimedOut, may_attach_later, refusal
from pybroker.client.frames import ReceivedEntry, send_head
from pybroker.client.producing.pending_sends import PendingSend, PendingSends
from pybroker.client.reconnect_delay import ReconnectDelay
from pybroker.errors import BrokerError, ProducerBusy
from pybroker.model.names import TopicName
from pybroker.model.txn_id import TxnId
from pybroker.runtime import logs
from pybroker.wire import pulsar_api_pb2 as pb

MAX_PENDING_ENTRIES = 1000
MAX_PENDING_BYTES = 32 * 1024 * 1024
SEND_TIMEOUT_S = 30.0

Command = pb.BaseCommand
_FINAL_SEND_ERRORS = frozenset(
    {
        pb.TopicTerminatedError,
        pb.NotAllowedError,
        pb.AuthorizationError,
        pb.MetadataError,
        pb.ChecksumError,
        pb.IncompatibleSchema,
        pb.ProducerFenced,
        pb.ProducerBlockedQuotaExceededException,
    }
)
"""Errors that the same bytes would cause again. After any other error the producer reattaches and sends again."""
_ERRORS_OF_ENTRIES = frozenset({pb.NotAllowedError, pb.MetadataError, pb.ChecksumError, pb.IncompatibleSchema})
"""Final errors that concern the entry only. If the entry has already timed out, the producer does not fail."""
_ERRORS_OF_TRANSACTIONS = frozenset(
    {
        pb.NotAllowedError,
        pb.TooManyRequests,
        pb.TransactionConflict,
        pb.TransactionNotFound,
        pb.InvalidTxnStatus,
    }
)
"""The transaction has ended, or there are too many. The entry and its transaction fail, but not the producer."""


class EntryId(NamedTuple):
    """The position at which an entry is stored; (-1, -1) if deduplication has dropped the entry."""

    ledger_id: int
    entry_id: int


@dataclass(frozen=True)
class ProducerSettings:
    """The options of a producer of entries."""

    name: str = ""
    """Empty: the broker assigns a name. Deduplication remembers sequence ids by name."""
    access_mode: pb.ProducerAccessMode = pb.Shared
    properties: Mapping[str, str] = field(default_factory=dict)
    """The metadata of the producer in the statistics of the topic."""
    is_encrypted: bool = False
    """All messages are encrypted by the caller. Topics that require encryption accept only such producers."""
    initial_subscription: str = ""
    """A durable subscription that the broker creates with a new topic. Empty: none."""
    schema: TopicSchema | None = None
    max_pending_entries: int = MAX_PENDING_ENTRIES
    max_pending_bytes: int = MAX_PENDING_BYTES
    send_timeout_s: float = SEND_TIMEOUT_S
    """An entry without a response for this time fails. 0 disables the timeout."""
    outlives_timeouts: bool = False
    """Whether the producer continues after an entry has timed out."""
    busy_patience_s: float = 0.0
    """How long to wait while another producer, which may be dead already, holds the name."""
    resends: bool = True
    """Whether to send unanswered entries again after a reconnection.

    If not, these entries and the producer fail, and no entry is stored twice.
    """


class ProducerState(Enum):
    """The state of a producer."""

    READY = "ready"
    RECONNECTING = "reconnecting"  # queues entries, and sends them after it has reattached
    FAILED = "failed"
    CLOSED = "closed"


class Producer(ConnectionUser, ClientPart):
    """A producer of one topic or partition. Created by `open_producer`."""

    def __init__(self, client: Client, topic: TopicName, settings: ProducerSettings) -> None:
        self.topic = topic
        self.name = settings.name
        self.last_sequence_id = -1
        """Last sequence id of this producer name, as the topic reported it at the first attachment."""
        self.schema_version = b""
        self.max_message_bytes = 0
        self._client = client
        self._settings = settings
        self._pending = PendingSends(settings.max_pending_entries, settings.max_pending_bytes)
        self._state = ProducerState.RECONNECTING
        self._failure: Exception | None = None
        self._connection: Connection | None = None
        self._producer_id = -1
        self._epoch = 0
        self._has_attached = False
        self._topic_epoch: int | None = None
        self._changed = asyncio.Event()
        """Set when capacity may be available, no entry is pending, or the state has changed."""
        self._timer: asyncio.TimerHandle | None = None
        client.parts[self] = None

    @property
    def state(self) -> ProducerState:
        return self._state

    @property
    def failure(self) -> Exception | None:
        """The error that ended the producer; None while it works."""
        return self._failure

    @property
    def pending_entries(self) -> int:
        return len(self._pending)

    # --- sending

    async def send(
        self,
        data: bytes,
        sequence_id: int,
        *,
        highest_sequence_id: int = 0,
        message_count: int = 1,
        is_chunk: bool = False,
        txn: TxnId | None = None,
    ) -> asyncio.Future[EntryId]:
        """Send an entry after all earlier ones, when the queue of pending entries has capacity. Return a future of the
        position at which the entry is stored. Raises NotSent, or the error that ended the producer.

        `txn`: the transaction of the entry. The caller has registered the topic in the transaction, and has written the
        transaction's id into the entry's metadata.
        """
        if len(data) > self.max_message_bytes + ENTRY_HEADROOM_BYTES:
            raise NotSent(
                f"the entry of {len(data)} bytes was not sent: the maximum of the broker is "
                f"{self.max_message_bytes} bytes (maxMessageSize)"
            )
        while not self._pending.has_room(len(data)) and self._failure is None:
            await self._wait()
        if self._connection is not None:
            await self._connection.writable()
        if self._failure is not None:
            raise self._failure
        loop = asyncio.get_running_loop()
        receipt: asyncio.Future[EntryId] = loop.create_future()
        entry = PendingSend(sequence_id, highest_sequence_id, message_count, data, is_chunk, receipt, loop.time(), txn)
        self._pending.add(entry)
        if self._timer is None and self._settings.send_timeout_s > 0:
            self._look_at_oldest()
        if self._state is ProducerState.READY:
            self._write([entry])
        return receipt

    async def flush(self) -> None:
        """Wait until the broker has answered all sent entries. Raises the error that ended the producer."""
        while len(self._pending) and self._failure is None:
            await self._wait()
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        if self._state in (ProducerState.CLOSED, ProducerState.FAILED):
            return
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.producers.pop(self._producer_id, None)
        self._fail(NotSent(f"the producer on {self.topic} is closed"), ProducerState.CLOSED)
        if connection is not None and connection.failure is None:
            command = Command(type=Command.CLOSE_PRODUCER)
            command.close_producer.producer_id = self._producer_id
            try:
                await connection.request(command)
            except (ClientError, BrokerError) as error:
                logs.debug("client.producer_not_closed", topic=self.topic, reason=error)

    async def client_closed(self) -> None:
        self._fail(NotSent(f"the client of the producer on {self.topic} is closed"), ProducerState.CLOSED)

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _write(self, entries: list[PendingSend]) -> None:
        assert self._connection is not None
        parts: list[bytes] = []
        for entry in entries:
            head = send_head(
                self._producer_id,
                entry.sequence_id,
                entry.highest_sequence_id,
                entry.message_count,
                len(entry.data),
                is_chunk=entry.is_chunk,
                txn=entry.txn,
            )
            parts += (head, entry.data)
        self._connection.write_parts(parts)

    # --- callbacks of the connection

    def received(self, event: pb.BaseCommand | ReceivedEntry) -> None:
        if isinstance(event, ReceivedEntry):
            return
        if event.type == Command.SEND_RECEIPT:
            self._receipted(event.send_receipt)
        elif event.type == Command.SEND_ERROR:
            code, text = event.send_error.error, event.send_error.message
            failure = refusal(code, f"{self.topic} refused an entry of {self.name}: {text}")
            entry = self._pending.find(event.send_error.sequence_id)
            if entry is not None and entry.txn is not None and code in _ERRORS_OF_TRANSACTIONS:
                self._pending.give_up(entry)
                self._refused(entry, failure)
                self._changed.set()
            elif entry is None and code in _ERRORS_OF_ENTRIES | _ERRORS_OF_TRANSACTIONS:
                logs.debug("client.late_refusal", topic=self.topic, producer=self.name, reason=failure)
            elif code in _FINAL_SEND_ERRORS:
                self._fail(failure, ProducerState.FAILED)
            else:
                self._attach_again(failure)
        elif event.type == Command.CLOSE_PRODUCER:
            self._attach_again(
                ConnectionLost(f"the broker closed the producer on {self.topic}: the topic is moving to another broker")
            )

    def lost(self, error: ConnectionLost) -> None:
        self._connection = None
        self._attach_again(error)

    def _receipted(self, receipt: pb.CommandSendReceipt) -> None:
        try:
            entry = self._pending.receipted(receipt.sequence_id)
        except ValueError as error:
            self._attach_again(ClientError(f"{self.topic}: {error}"))
            return
        if entry is None:
            return
        future = entry.token
        assert isinstance(future, asyncio.Future)
        if not future.done():
            future.set_result(EntryId(_signed(receipt.message_id.ledgerId), _signed(receipt.message_id.entryId)))
        self._changed.set()

    # --- attaching

    async def attach(self) -> None:
        """Attach to the topic. If the broker refuses, the producer is closed, and the error is raised."""
        now_s = asyncio.get_running_loop().time
        busy_until_s = now_s() + self._settings.busy_patience_s
        try:
            while True:
                try:
                    await self._client.retried(self._attach_once)
                    return
                except ProducerBusy:
                    if now_s() > busy_until_s:
                        raise
                await asyncio.sleep(0.2)
        except BaseException as failure:
            self._fail(NotSent(f"not attached: {failure}"), ProducerState.CLOSED)
            raise

    async def _attach_once(self) -> None:
        connection = await self._client.connection_for(self.topic)
        producer_id = next(connection.ids)
        settings = self._settings
        command = Command(type=Command.PRODUCER)
        producer = command.producer
        producer.topic = str(self.topic)
        producer.producer_id = producer_id
        producer.epoch = self._epoch
        producer.user_provided_producer_name = bool(settings.name)
        producer.producer_access_mode = settings.access_mode
        if self.name:
            producer.producer_name = self.name
        for name, text in settings.properties.items():
            producer.metadata.add(key=name, value=text)
        producer.encrypted = settings.is_encrypted
        if settings.initial_subscription:
            producer.initial_subscription_name = settings.initial_subscription
        if self._topic_epoch is not None:
            producer.topic_epoch = self._topic_epoch
        if settings.schema is not None:
            producer.schema.CopyFrom(settings.schema.to_wire())
        connection.producers[producer_id] = self
        try:
            answer = (await connection.request(command)).producer_success
            if self._failure is not None:
                raise self._failure
            if producer_id not in connection.producers:
                raise connection.failure or ConnectionLost(
                    f"the broker closed the new producer on {self.topic} immediately: the broker's log has the reason"
                )
        except BaseException:
            connection.detach_producer(producer_id)  # the broker may have attached it, and it would hold the name
            raise
        if not self._has_attached:
            self._has_attached = True
            self.last_sequence_id = answer.last_sequence_id
        self.name = answer.producer_name
        self.schema_version = answer.schema_version
        self.max_message_bytes = connection.max_message_bytes
        if answer.HasField("topic_epoch"):
            self._topic_epoch = answer.topic_epoch
        self._connection, self._producer_id = connection, producer_id
        self._state = ProducerState.READY
        self._write([*self._pending])
        self._changed.set()

    def _attach_again(self, reason: Exception) -> None:
        if self._state is not ProducerState.READY:
            return
        if not self._settings.resends and len(self._pending):
            text = f"{len(self._pending)} entries for {self.topic} were not confirmed, and may or may not be stored: {reason}"
            self._fail(ConnectionLost(text), ProducerState.FAILED)
            return
        for entry in self._pending.give_up_in_transactions():
            text = f"an entry for {self.topic} was not confirmed, and may or may not be stored in its transaction: {reason}"
            self._refused(entry, ConnectionLost(text))
        self._changed.set()
        self._state = ProducerState.RECONNECTING
        # Not with each attempt: a higher epoch replaces the holder of the name on the same connection.
        self._epoch += 1
        if self._connection is not None and not isinstance(reason, ConnectionLost):
            # No entry sent after the refused one may be stored before it.
            self._connection.abort(f"an entry was refused: {reason}")
        self._connection = None
        logs.info("client.producer_lost", topic=self.topic, producer=self.name, reason=reason)
        self._client.tasks.start(self._keep_attaching(), f"producer {self.topic}")

    async def _keep_attaching(self) -> None:
        delay = ReconnectDelay(random.random())
        while self._state is ProducerState.RECONNECTING:
            try:
                await self._attach_once()
            except (ClientError, BrokerError, ValueError) as error:
                if not may_attach_later(error):
                    self._fail(error, ProducerState.FAILED)
                    return
                await asyncio.sleep(delay.next_s())

    # --- the end

    def _look_at_oldest(self) -> None:
        self._timer = None
        if self._failure is not None:
            return
        loop = asyncio.get_running_loop()
        timeout_s, now_s = self._settings.send_timeout_s, loop.time()
        oldest = self._pending.oldest
        if oldest is not None and oldest.sent_at_s + timeout_s <= now_s:
            text = (
                f"an entry for {self.topic} was not confirmed within {timeout_s:g} s ({len(self._pending)} entries wait): the "
                "entry may or may not be stored. The broker is slow, or cannot be reached. "
            )
            if not self._settings.outlives_timeouts:
                self._fail(
                    RequestTimedOut(text + "The producer has failed: create a new producer"), ProducerState.FAILED
                )
                return
            late = self._pending.give_up_sent_by(now_s - timeout_s)
            logs.info("client.send_timed_out", topic=self.topic, producer=self.name, entries=len(late))
            text += "The producer continues; a message that is sent again may be stored twice, and after later messages"
            for entry in late:
                self._refused(entry, RequestTimedOut(text))
            self._changed.set()
            oldest = self._pending.oldest
        if oldest is not None:
            left_s = oldest.sent_at_s + timeout_s - now_s
            self._timer = loop.call_later(left_s, self._look_at_oldest)

    def _fail(self, failure: Exception, state: ProducerState) -> None:
        if self._failure is not None:
            return
        self._failure = failure
        self._state = state
        self._client.parts.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        if self._connection is not None:
            self._connection.detach_producer(self._producer_id)  # otherwise the broker would keep the name for it
            self._connection = None
        for entry in self._pending.clear():
            self._refused(entry, failure)
        self._changed.set()

    def _refused(self, entry: PendingSend, failure: Exception) -> None:
        future = entry.token
        assert isinstance(future, asyncio.Future)
        if not future.done():
            future.set_exception(failure)
            future.exception()  # mark as retrieved: `flush` raises the failure, too


ENTRY_HEADROOM_BYTES = 10 * 1024
"""Bytes that brokers accept above the maximum message size, for command and metadata."""


async def open_producer(client: Client, topic: TopicName, settings: ProducerSettings | None = None) -> Producer:
    producer = Producer(client, topic, settings or ProducerSettings())
    await producer.attach()
    return producer


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
