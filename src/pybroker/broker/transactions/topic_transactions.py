"""Transactions of one topic: their messages, their ends, and their durable state.

The durable state is the cursor `pulsar.transactions` and a snapshot of the transaction buffer (`transaction_buffer.py`)
up to its mark-delete position. When the topic is loaded, later entries are read again (`transaction_recovery.py`), so
the cursor protects them from trimming. A snapshot is stored after a number of ended transactions, after some time, when
the ledger changes, and when the topic is closed; it is durable before the mark-delete position moves.

A transaction ends when a marker after its messages is durable. A terminated topic accepts no marker, and a transaction
without messages on this topic needs none; then the snapshot records the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from pybroker.broker.context.pending_transaction_ends import PendingEnd, PendingEnds
from pybroker.broker.limits.publish_rate_limit import WaitingPublishers
from pybroker.broker.publishing.internal_publisher import Publisher
from pybroker.broker.publishing.producer import Producer
from pybroker.broker.publishing.publish_checks import Refused, rows, split
from pybroker.broker.transactions.transaction_buffer import TransactionBuffer
from pybroker.errors import BrokerError, NotAllowedError, PersistenceError, ServiceNotReady, StoreError
from pybroker.ledgers.cursor_store import CursorOwner
from pybroker.managed_ledger.info.managed_ledger_info import TRANSACTIONS_CURSOR
from pybroker.model.events import SendRun
from pybroker.model.position import Position
from pybroker.model.txn_id import TxnAction, TxnId
from pybroker.runtime import logs
from pybroker.runtime.tasks import completion, first_set
from pybroker.wire.transaction_metadata import end_marker, is_end_marker, of_transaction, put_into

if TYPE_CHECKING:
    from pybroker.broker.context.topic_context import TopicContext
    from pybroker.managed_ledger.managed_ledger import ManagedLedger

PART = "transactions"
"""Part of the topic on whose behalf publishers wait."""
SNAPSHOT_ENTRIES = 100_000
"""A snapshot is due when a load would have to read this many entries."""


class TransactionTopic(Protocol):
    """The topic that owns the transactions."""

    def publish(self, producer: Producer, run: SendRun) -> None: ...

    def append(self, producer: Producer, run: SendRun, accepted: None) -> bool:
        """Pass messages to the ledger. If the ledger refuses them, send the error to `producer` and return False.
        `accepted` is always None: these messages have no deduplication record.
        """

    def hold_publishers(self, part: str, queue: WaitingPublishers | None) -> None:
        """Make publishers wait in `queue`, because the component `part` of the topic blocks them. If `queue` is None,
        `part` no longer blocks them.
        """

    def wake_subscriptions(self) -> None: ...


class TopicTransactions(CursorOwner):
    """Transactions of one topic. The cursor store includes their snapshot in its checkpoints."""

    def __init__(
        self,
        topic: TopicContext,
        ledger: ManagedLedger,
        buffer: TransactionBuffer | None,
        owner: TransactionTopic,
    ) -> None:
        self.buffer = buffer
        """None until transactional messages are accepted; until then, publishers call `wait`."""
        self._topic = topic
        self._ledger = ledger
        self._owner = owner
        self._record_id = ""
        self._waiting: list[tuple[Producer, SendRun]] = []  # messages that wait until the cursor is durable
        self._begun: asyncio.Event | None = None
        self._has_said_why = False  # whether the failure to create the cursor is logged
        self._endings: dict[TxnId, _Ending] = {}
        self._unsaved: set[TxnId] = set()  # transactions whose end is not in a stored snapshot yet
        self._is_closed = False
        self._saving = asyncio.Lock()
        self._is_snapshot_due = False
        self._changes = 0  # since the last snapshot
        self._ended_since = 0
        self._entries_since = 0
        self.last_snapshot_ms = 0
        """Time of the last snapshot in milliseconds since 1970; 0 if none was stored since the load."""
        self._pending_ends = PendingEnds(buffer.open if buffer is not None else (), topic.broker_context.pending_end_of)
        self._an_end = asyncio.Event()  # set at the end of each transaction, and when the topic closes
        self.waiting_readers = 0
        """Number of requests that wait until the end of a committed transaction is known."""
        if buffer is not None:
            self._show(buffer)

    # --- messages ----------------------------------------------------------------------------------------------------

    def admit(self, producer: Producer, run: SendRun) -> tuple[SendRun, Refused]:
        """Split transactional messages into admitted and rejected messages. Add the transaction id to message metadata
        that does not contain it.
        """
        assert run.txn is not None
        assert self.buffer is not None
        try:
            self.buffer.require_open(run.txn)
        except BrokerError as refusal:
            return rows(run, ()), [(run, refusal)]
        topic = self._topic
        refused_part = topic.broker_context.taking_part(run.txn, producer.peer.principal, str(topic.name), None)
        if refused_part is not None:
            # At any other error, clients reconnect and send the messages again.
            return rows(run, ()), [(run, NotAllowedError(str(refused_part)))]
        errors: dict[int, BrokerError] = {}
        for index, entry in enumerate(run.payloads):
            said = of_transaction(entry)
            if said is None and (named := put_into(entry, run.txn)) is not None:
                run.payloads[index] = named
            elif said is None or said.txn != run.txn or said.ends is not None:
                errors[index] = NotAllowedError(
                    f"The metadata of a message of transaction {run.txn} contains the id of another transaction"
                )
        kept, refused = split(run, errors)
        kept.has_markers = False  # From here on set only for the marker of an end.
        return kept, refused

    def admit_plain(self, run: SendRun) -> tuple[SendRun, Refused]:
        """Split messages that were sent without a transaction into admitted and rejected messages.

        End markers are rejected, because only the broker may publish them. If the topic has had transactions, messages
        with a transaction id in their metadata are rejected, too: the next load would count them as part of an open
        transaction.
        """
        errors: dict[int, BrokerError] = {}
        for index, entry in enumerate(run.payloads):
            if run.has_markers and is_end_marker(entry):
                errors[index] = NotAllowedError("Only the broker may write the end marker of a transaction")
            elif self.buffer is not None and (said := of_transaction(entry)) is not None:
                errors[index] = NotAllowedError(
                    f"The metadata of a message contains transaction id {said.txn}, but its command does not: send it in the "
                    "transaction, or without txnid_least_bits and txnid_most_bits"
                )
        return split(run, errors)

    @property
    def is_beginning(self) -> bool:
        """Whether the topic is creating the cursor `pulsar.transactions`, for its first transaction. Publishers wait
        until the cursor is durable.
        """
        return self._begun is not None

    def wait(self, producer: Producer, run: SendRun) -> None:
        self._waiting.append((producer, run))
        self._begin_once()

    def _begin_once(self) -> asyncio.Event:
        if self._begun is None:
            self._begun = asyncio.Event()
            self._owner.hold_publishers(PART, WaitingPublishers(self._topic.runtime.clock))
            self._topic.tasks.start(self._begin(), "first transaction")
        return self._begun

    async def _begin(self) -> None:
        topic, ledger, error = self._topic, self._ledger, None
        try:
            last = ledger.ledgers.last_position
            announce = topic.broker_context.announce_transactions
            if announce is not None:
                await announce(topic.name, last)
            cursor = await topic.broker_context.ledgers.create_cursor(ledger, TRANSACTIONS_CURSOR, last, {})
            buffer = TransactionBuffer(topic.runtime.config.max_open_transactions_per_topic)
            buffer.up_to = cursor.mark_delete_position
            self.buffer = buffer
            self._show(buffer)
        except StoreError as failure:
            error = failure
            if not self._has_said_why:  # Logged once, because clients repeat the message immediately.
                self._has_said_why = True
                logs.error("transactions.start_failed", topic=topic.name, error=str(failure))
        except Exception as failure:
            # A bug, which is logged with the task. Without an answer, later messages would be stored in front of these.
            error = StoreError(f"the transactions of {topic.name} cannot be started: {failure!r}")
            raise
        finally:
            waiting, self._waiting = self._waiting, []
            begun, self._begun = self._begun, None
            assert begun is not None
            begun.set()
            for producer, run in waiting:
                if self.buffer is not None:
                    self._owner.publish(producer, run)
                elif error is None:
                    producer.peer.sends_dropped(run, PersistenceError("the topic is being closed"))
                else:
                    refusal = error.answer()
                    topic.refused(producer.name, producer.peer.address, run, refusal)
                    producer.peer.send_errors(run.producer_id, run.sequence_ids, refusal, run.size_bytes)
            self._owner.hold_publishers(PART, None)

    def offered(self, run: SendRun) -> None:
        if run.txn is not None and not _is_end(run):
            assert self.buffer is not None
            self.buffer.offered(run.txn, len(run.payloads))

    def stored(self, producer: Producer, run: SendRun, first: Position) -> None:
        buffer = self.buffer
        if buffer is None:
            return
        entries = len(run.payloads)
        ledger_before = buffer.up_to.ledger_id
        if run.txn is None:
            buffer.passed(first, entries)
        elif _is_end(run):
            self._has_ended(buffer, run.txn, first)
        else:
            now_ms = self._topic.runtime.clock.wall_ms()
            buffer.stored(run.txn, first, entries, now_ms, producer.name)
            self._changes += 1
            self._show(buffer)
        self._entries_since += entries
        if self._changes or first.ledger_id != ledger_before or self._entries_since >= SNAPSHOT_ENTRIES:
            self._snapshot_soon()

    def failed(self, run: SendRun) -> None:
        if self.buffer is not None and run.txn is not None and not _is_end(run):
            self.buffer.failed(run.txn, len(run.payloads))

    # --- ends --------------------------------------------------------------------------------------------------------

    @property
    def pending_end(self) -> PendingEnd | None:
        return None if self.buffer is None else self._pending_ends.first(self.buffer.open)

    async def ends_known(self, timeout_s: float | None = None) -> None:
        """Wait until this topic has stored the commit of each transaction that its coordinator committed before the
        topic was loaded. Readers then see the messages of these transactions.

        Raises ServiceNotReady after `timeout_s` seconds (default: `transactionBufferEndsWaitTimeInMillis`), and when
        the topic is closed.
        """
        if self.pending_end is None:
            return
        if timeout_s is None:
            timeout_s = self._topic.runtime.config.transaction_buffer_ends_wait_time_in_millis / 1000
        self.waiting_readers += 1
        try:
            async with asyncio.timeout(timeout_s):
                while (pending := self.pending_end) is not None and not self._is_closed:
                    self._an_end.clear()
                    await first_set(self._an_end, pending.is_read)
        except TimeoutError:
            if (left := self.pending_end) is not None:
                raise ServiceNotReady(
                    f"Cannot determine the last message of {self._topic.name}: transaction {left.txn} {left.reason}. The request "
                    f"has waited for {timeout_s:g} s (transactionBufferEndsWaitTimeInMillis). Try again; `pybroker explain` of "
                    "the topic shows the cause"
                ) from None
        finally:
            self.waiting_readers -= 1
        if self._is_closed:
            raise ServiceNotReady(f"topic {self._topic.name} is being unloaded, try again")

    async def end(self, txn: TxnId, action: TxnAction, low_water_mark: int) -> None:
        """Commit or abort the transaction. Durable on return. An unknown transaction is not an error.

        `low_water_mark`: all transactions of the same coordinator with this or a lower id have ended, so those that are
        still open on this topic are aborted. Raises BrokerError: the caller must retry.
        """
        if not self._is_closed and self.buffer is None:
            await self._begin_once().wait()
        if self._is_closed:
            raise ServiceNotReady(f"topic {self._topic.name} is being unloaded, try again")
        buffer = self.buffer
        if buffer is None:
            raise PersistenceError(
                f"the end of transaction {txn} on topic {self._topic.name} cannot be stored, because the topic's cursor "
                f"{TRANSACTIONS_CURSOR}, which stores the state of its transactions, could not be created: try again"
            )
        await self._end(buffer, txn, action)
        for late in buffer.raise_low_water_mark(txn.most, low_water_mark):
            logs.warning("transaction.late_messages", topic=self._topic.name, transaction=str(late), action="aborted")
            await self._end(buffer, late, TxnAction.ABORT)

    async def _end(self, buffer: TransactionBuffer, txn: TxnId, action: TxnAction) -> None:
        ending = self._endings.get(txn)
        if ending is None:
            is_known = buffer.is_known(txn)
            if not is_known and buffer.has_ended(txn) and txn not in self._unsaved:
                return
            ending = self._endings[txn] = _Ending(txn, action)
            buffer.offered_end(txn)
            if is_known and not self._ledger.is_terminated:
                self._append_marker(buffer, ending)
            else:
                self._topic.tasks.start(self._end_in_snapshot(buffer, ending), f"end transaction {txn}")
        await asyncio.shield(ending.done)

    def _append_marker(self, buffer: TransactionBuffer, ending: _Ending) -> None:
        broker_context = self._topic.broker_context
        now_ms = broker_context.runtime.clock.wall_ms()
        entry = end_marker(ending.txn, ending.action, now_ms)
        run = SendRun(0, ending.txn)
        run.sequence_ids.append(0)
        run.highest_sequence_ids.append(0)
        run.message_counts.append(1)
        run.payloads.append(entry)
        run.size_bytes = len(entry)
        run.has_markers = True
        peer = _MarkerPeer(lambda error: self._end_failed(buffer, ending, error))
        self._owner.append(Producer(_leave, 0, "pulsar.marker", False, 0, peer, {}, now_ms), run, None)

    def _has_ended(self, buffer: TransactionBuffer, txn: TxnId, marker: Position | None) -> None:
        ending = self._endings.pop(txn)
        buffer.ended(txn, ending.action, marker)
        self._changes += 1
        self._ended_since += 1
        self._show(buffer)
        self._an_end.set()
        if not ending.done.done():
            ending.done.set_result(None)

    def _end_failed(self, buffer: TransactionBuffer, ending: _Ending, error: BrokerError) -> None:
        self._endings.pop(ending.txn, None)
        buffer.end_failed(ending.txn)
        _fail(ending, error)

    async def _end_in_snapshot(self, buffer: TransactionBuffer, ending: _Ending) -> None:
        txn = ending.txn
        try:
            buffer.ended(txn, ending.action, None)
            self._changes += 1
            await self.store()
        except StoreError as error:
            # It has ended in memory, but may be open after a restart: the caller must retry.
            self._unsaved.add(txn)
            self._endings.pop(txn, None)
            _fail(ending, error.answer())
            return
        self._endings.pop(txn, None)
        if not ending.done.done():
            ending.done.set_result(None)
        self._show(buffer)
        self._an_end.set()
        self._owner.wake_subscriptions()

    def _show(self, buffer: TransactionBuffer) -> None:
        read_limit = self._ledger.read_limit
        read_limit.limit, read_limit.hidden = buffer.limit, buffer.hidden

    # --- snapshots ---------------------------------------------------------------------------------------------------

    def _snapshot_soon(self) -> None:
        config = self._topic.runtime.config
        if self._ended_since >= config.transaction_buffer_snapshot_max_transaction_count:
            self._ended_since = 0
            self._topic.tasks.start(self._snapshot_in_background(), "snapshot of transactions")
        elif not self._is_snapshot_due:
            self._is_snapshot_due = True
            delay_s = config.transaction_buffer_snapshot_min_time_in_millis / 1000
            self._topic.runtime.call_later(delay_s, self._snapshot_now)

    def _snapshot_now(self) -> None:
        self._is_snapshot_due = False
        if not self._is_closed:
            self._topic.tasks.start(self._snapshot_in_background(), "snapshot of transactions")

    async def _snapshot_in_background(self) -> None:
        try:
            await self.store()
        except StoreError as error:
            logs.error("transactions.snapshot_failed", topic=self._topic.name, error=str(error))

    async def store(self) -> None:
        """Store a snapshot, which allows trimming of the entries that it covers. Raises StoreError."""
        async with self._saving:
            buffer, cursor = self.buffer, self._ledger.cursors.get(TRANSACTIONS_CURSOR)
            if buffer is None or cursor is None or not (self._changes or self._entries_since):
                return
            if not self._record_id:
                record_id = await cursor.announce_delayed()
                self._topic.broker_context.ledgers.cursor_store.attach(record_id, self)
                self._record_id = record_id
            before = self._changes, self._entries_since, self._ended_since
            self._changes = self._entries_since = self._ended_since = 0
            up_to = buffer.up_to
            stored, done = completion()
            try:
                self._topic.broker_context.ledgers.cursor_store.append_delta(self._record_id, self.snapshot(), done)
                await stored
                await cursor.expire_to(up_to)
            except BaseException:
                self._changes += before[0]
                self._entries_since += before[1]
                self._ended_since += before[2]
                raise
            self._unsaved.clear()
            self.last_snapshot_ms = self._topic.runtime.clock.wall_ms()

    def snapshot(self) -> bytes:
        assert self.buffer is not None
        self.buffer.forget_ledgers(self._ledger.ledgers.has_ledger)
        return self.buffer.snapshot()

    # --- lifecycle ---------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Store a snapshot, so that the next load reads few entries. Never raises."""
        self._is_closed = True
        self._an_end.set()
        try:
            await self.store()
            if self._record_id:
                await self._topic.broker_context.ledgers.cursor_store.detach(self._record_id)
        except StoreError as error:
            logs.error("transactions.snapshot_failed", topic=self._topic.name, error=str(error))

    def closed(self) -> None:
        """Fail all requests that wait for the end of a transaction, because the ledger is closed or deleted."""
        self._is_closed = True
        self._an_end.set()
        if self._begun is not None:
            self._begun.set()  # A task that is cancelled before its first step does not set it.
        for ending in self._endings.values():
            _fail(ending, ServiceNotReady(f"topic {self._topic.name} is being unloaded, try again"))
        self._endings.clear()


class _Ending:
    __slots__ = ("action", "done", "txn")

    def __init__(self, txn: TxnId, action: TxnAction) -> None:
        self.txn = txn
        self.action = action
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class _MarkerPeer(Publisher):
    """Publishes one marker and receives a possible error. `TopicTransactions.stored` handles the success."""

    def __init__(self, failed: Callable[[BrokerError], None]) -> None:
        self._failed = failed

    def _answer(self, sequence_id: int, answer: Position | BrokerError) -> None:
        if isinstance(answer, BrokerError):
            self._failed(answer)


def _is_end(run: SendRun) -> bool:
    return run.has_markers


def _leave(producer: Producer) -> None: ...


def _fail(ending: _Ending, error: BrokerError) -> None:
    if not ending.done.done():
        ending.done.set_exception(error)
        ending.done.exception()  # mark as retrieved: there may be no waiter
