"""One transaction coordinator: opens and ends transactions, stores them in a log, and notifies participants.

Operation: for each request, `coordinator_state.py` returns a log record. The coordinator appends the record to the log,
applies it immediately, and responds when it is durable. No other task runs between the decision and the append. A
durable COMMITTING or ABORTING is completed without a client.

Recovery: the whole log is read before requests are served. Pending ends continue; open transactions are usable or time
out. When the log fails, all waiters receive an error, and the log is read again after an increasing delay.
"""

from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from pybroker.errors import NotAllowedError, PersistenceError, ServiceNotReady, StoreError, TooManyRequests
from pybroker.model.counters import Buckets
from pybroker.model.txn_id import ID_BASE_BESIDE_PULSAR, TxnAction, TxnId
from pybroker.runtime import logs
from pybroker.runtime.tasks import TaskOwner
from pybroker.transactions.coordinator_state import ALL_IN_FULL, CoordinatorState, Phase, Status, Transaction
from pybroker.transactions.java_brokers import JavaBrokers
from pybroker.transactions.participant_notification import Ending, Endings, EndParticipant, Participant
from pybroker.transactions.sinks import Asking, Label
from pybroker.transactions.timeouts import LONGEST_MS, Timeouts
from pybroker.transactions.transaction_log import TransactionLog
from pybroker.transactions.transaction_slots import TransactionLimits, TransactionSlot, TransactionSlots
from pybroker.waiting.fair_shares import Holder, holder_of_role

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pybroker.managed_ledger.factory import ManagedLedgerFactory
    from pybroker.runtime.runtime import Runtime
    from pybroker.transactions.log_positions import PlaceKey
    from pybroker.transactions.records import Record

READY_WAIT_S = 20.0
"""How long a request waits for the log to be read."""
TIMED_OUT_AT_ONCE = 256
GONE_ON_WITH_AT_ONCE = 500
GRAIN_MS = 50.0
"""Timeouts within this time share a timer."""
LATENCIES_MS = (10, 20, 50, 100, 500, 1000, 5000, 15000, 30000, 60000, 300000, 1500000, 3000000)
FULL_DISK_RETRY_MS = 1000.0
FIRST_RETRY_S = 0.1
LONGEST_RETRY_S = 30.0
TOLD_A_TURN = 256
"""Transactions of a sink's batch whose notifications begin in one event loop iteration; also the maximum number that is
removed at once from a full log.
"""


@dataclass
class Counters:
    """Counters of all coordinators since the broker started."""

    created: int = 0
    committed: int = 0
    aborted: int = 0
    timed_out: int = 0
    batches: int = 0
    repeated_batches: int = 0
    """Number of sink batches that were sent again after their commit."""
    appended: int = 0
    took_ms: Buckets = field(default_factory=lambda: Buckets(LATENCIES_MS))


class CoordinatorContext:
    """Objects that all coordinators of a broker share."""

    def __init__(self, runtime: Runtime, ledgers: ManagedLedgerFactory, end_participant: EndParticipant) -> None:
        self.runtime = runtime
        self.ledgers = ledgers
        has_java_layout = ledgers.store.has_pulsar_layout
        self.java_brokers = JavaBrokers(ledgers.metadata, runtime.clock) if has_java_layout else None
        """The Java brokers of the cluster; None if Java brokers cannot share the topics."""
        self.id_base = ID_BASE_BESIDE_PULSAR if has_java_layout else 0
        self.end_participant = end_participant
        self.slots = asyncio.Semaphore(runtime.config.transaction_buffer_client_max_concurrent_requests)
        self.coordinators: dict[int, Coordinator] = {}
        self.limits = TransactionLimits(runtime.config)

    def admit_waiting(self) -> None:
        """Let requests of all coordinators that wait for memory continue, as far as memory is available."""
        for each in self.coordinators.values():
            each.admit_waiting()


class Coordinator:
    """One transaction coordinator. It exists from its first use until the broker stops or loses its bundle. A sink is
    the name under which a program (the writer) writes numbered batches; the transactions of a batch are committed
    together, once.
    """

    def __init__(
        self,
        context: CoordinatorContext,
        coordinator_id: int,
        log_path: str,
        predecessor: Coordinator | None = None,
    ) -> None:
        """`predecessor`: the coordinator of an earlier session of this broker, which is being closed. The log is opened
        afterwards.
        """
        self.id = coordinator_id
        self.log_path = log_path
        self.phase = Phase.INITIALIZING
        self.last_error = ""
        self.recover_started_ms = 0
        self.recover_ended_ms = 0
        self.counters = Counters()
        self.state = CoordinatorState(coordinator_id, context.limits.sizes, context.id_base)
        self.log: TransactionLog | None = None
        self._context = context
        self._runtime = context.runtime
        self._tasks = TaskOwner(f"transaction coordinator {coordinator_id}")
        self._ready = asyncio.Event()
        self._timeouts = Timeouts()
        self._timer_ms: float | None = None
        self._ended: dict[int, asyncio.Future[None]] = {}  # requests that wait for the end of a transaction
        # transactions that all participants have confirmed, whose removal is not in the log yet
        self._told: dict[int, Transaction] = {}
        self._is_log_full = False  # whether the full log was reported
        self._slots = TransactionSlots(coordinator_id, context.limits, lambda: self.state)
        self._failures = 0
        self._predecessor = predecessor
        self._closed = asyncio.Event()
        self.endings = self._new_endings()
        self._tasks.start(self._recover(), "recover")

    def _new_endings(self) -> Endings:
        context = self._context
        return Endings(
            self._runtime,
            self._tasks,
            context.slots,
            context.end_participant,
            lambda: self.state.low_water_mark,
            self._all_told,
        )

    # --- lifecycle -----------------------------------------------------------------------------------------------------

    async def ready(self) -> None:
        """Wait until the log has been read. Raises ServiceNotReady after `READY_WAIT_S` seconds, or if the coordinator
        is closed.
        """
        if self._ready.is_set():
            return
        try:
            async with asyncio.timeout(READY_WAIT_S):
                await self._ready.wait()
        except TimeoutError:
            pass
        if self.phase is not Phase.READY:
            raise self._not_ready()

    @property
    def is_read(self) -> asyncio.Event:
        """Event that is set when the log has been read or the coordinator is closed."""
        return self._ready

    def _not_ready(self) -> ServiceNotReady:
        why = f": {self.last_error}" if self.last_error else ""
        return ServiceNotReady(f"Transaction coordinator {self.id} is still reading its log, try again{why}")

    @property
    def waiting(self) -> int:
        return self._slots.waiting

    @property
    def log_entries(self) -> int:
        return 0 if self.log is None else self.log.managed.ledgers.entry_count

    async def _recover(self) -> None:
        if self._predecessor is not None:
            await self._predecessor.closed()
        while True:
            self.recover_started_ms = self._runtime.clock.wall_ms()
            self.state.leave()
            state = CoordinatorState(self.id, self._context.limits.sizes, self._context.id_base)
            self.state = state
            try:
                log = await TransactionLog.open(self._context.ledgers, self.log_path, state.apply, self._whole)
            except StoreError as error:
                self._failures += 1
                self.last_error = str(error)
                logs.error("transaction_log.read_failed", coordinator=self.id, error=str(error))
                await asyncio.sleep(min(LONGEST_RETRY_S, FIRST_RETRY_S * 2 ** min(self._failures, 16)))
            else:
                break
        state.all_applied()
        log.failed = self._log_failed
        self.log = log
        self.recover_ended_ms = self._runtime.clock.wall_ms()
        self.last_error = ""
        self.phase = Phase.READY
        self._ready.set()
        found = len(state)
        if not found:
            return
        await self._go_on(state)
        if self.state is state:
            logs.info(
                "transaction_coordinator.recovered",
                coordinator=self.id,
                transactions=found,
                took_ms=self.recover_ended_ms - self.recover_started_ms,
            )

    async def _go_on(self, state: CoordinatorState) -> None:
        now_wall_ms, now_ms = self._runtime.clock.wall_ms(), self._runtime.clock.monotonic_ms()
        # With their status in the log: a transaction that a client ends meanwhile is notified by that request, when the
        # end is durable.
        found = [(transaction, transaction.status) for transaction in state.transactions()]
        for count, (transaction, status) in enumerate(found):
            if count % GONE_ON_WITH_AT_ONCE == GONE_ON_WITH_AT_ONCE - 1:
                await asyncio.sleep(0)
            if self.state is not state or self.phase is not Phase.READY:
                return  # The log is read again, or closed.
            if status is Status.OPEN:
                transaction.timeout_ms = min(transaction.timeout_ms, self._longest_ms())
                # A wall clock that was set back must not keep the transaction open for longer than requested.
                left_ms = min(transaction.timeout_ms, transaction.opened_ms + transaction.timeout_ms - now_wall_ms)
                self._time_out_at(transaction, now_ms + max(0, left_ms))
            else:
                self._tell(transaction)

    def _log_failed(self, error: StoreError) -> None:
        if self.phase is not Phase.READY:
            return
        logs.error("transaction_log.failed", coordinator=self.id, error=str(error))
        self.phase = Phase.INITIALIZING
        self.last_error = str(error)
        self._ready.clear()
        self.endings.close()
        self.endings = self._new_endings()
        self._timeouts = Timeouts()
        self._told = {}
        refusal = PersistenceError(f"the log of transaction coordinator {self.id} failed, try again: {error}")
        self._refuse_all(refusal)
        failed, self.log = self.log, None
        self._tasks.start(self._begin_anew(failed), "begin anew")

    def _refuse_all(self, refusal: Exception) -> None:
        ended = list(self._ended.values())
        self._ended.clear()
        for each in ended:
            if not each.done():
                each.set_exception(refusal)
                each.exception()  # mark as retrieved: there may be no waiter
        self._slots.refuse_all(refusal)

    async def _begin_anew(self, failed: TransactionLog | None) -> None:
        if failed is not None:
            await failed.close()
        await asyncio.sleep(FIRST_RETRY_S)
        await self._recover()

    async def close(self) -> None:
        """Accept no more commands. Commits and aborts in progress continue when a broker starts the coordinator again."""
        self.phase = Phase.CLOSED
        self._ready.set()  # Waiters receive an error.
        self.endings.close()
        self._refuse_all(ServiceNotReady("the broker is stopping, try again"))
        await self._tasks.close()
        if self.log is not None:
            await self.log.close()
            self.log = None
        if self._predecessor is not None:
            await self._predecessor.closed()
        self._closed.set()

    async def closed(self) -> None:
        """Wait until `close` is complete, and an earlier coordinator of this broker with the same id is closed too."""
        await self._closed.wait()

    def _append(self, record: Record) -> asyncio.Future[None]:
        if self.log is None or self.phase is not Phase.READY:
            raise self._not_ready()
        durable = self.log.append(record)
        self.counters.appended += 1
        self.state.apply(record)
        return durable

    def _whole(self, key: PlaceKey) -> Record | None:
        if isinstance(key, str):
            return self.state.whole_mark(key)
        transaction = self.state.find(key)
        return None if transaction is None else self.state.whole(transaction)

    # --- client requests ----------------------------------------------------------------------------------------------

    async def new(self, timeout_ms: int, owner: str | None, holder: Holder | None = None) -> TxnId:
        """Open a transaction, which is aborted after `timeout_ms` milliseconds. Durable on return. It is charged to
        `holder` (role or address), by default to the role `owner`.

        Waits while the limit of open transactions is reached, or while `holder` has used its fair share of it. Raises
        TooManyRequests after a timeout, ServiceNotReady, StoreError, and NotAllowedError while a Java broker is
        registered in the cluster.
        """
        await self._ready_for_new()
        slot = await self._slots.acquire(holder_of_role(owner) if holder is None else holder)
        try:
            return await self._open(slot, timeout_ms, owner, None)
        finally:
            slot.release()

    async def _ready_for_new(self) -> None:
        await self.ready()
        if self._context.java_brokers is not None:
            await self._context.java_brokers.require_none()

    async def _open(self, slot: TransactionSlot, timeout_ms: int, owner: str | None, label: Label | None) -> TxnId:
        now_ms = self._runtime.clock.wall_ms()
        record = self.state.new(now_ms, min(max(0, timeout_ms), self._longest_ms()), owner, label)
        durable = self._append(record)
        slot.release()
        self.counters.created += 1
        transaction = self.state.find(record.least)
        assert transaction is not None
        self.state.held_by(transaction, slot.holder.name)
        self._time_out_at(transaction, self._runtime.clock.monotonic_ms() + transaction.timeout_ms)
        await _settled(durable)
        return transaction.id

    def _longest_ms(self) -> int:
        longest_ms = self._runtime.config.max_transaction_timeout_in_seconds * 1000
        return min(longest_ms, LONGEST_MS) if longest_ms > 0 else LONGEST_MS

    def admit_waiting(self) -> None:
        self._slots.admit_waiting()

    async def abort_of(self, name: str) -> int:
        """Abort all open transactions of the holder `name` (role or address), durably. Return their number.
        Participants are notified in the background. Raises StoreError, ServiceNotReady.
        """
        await self.ready()
        count, state = 0, self.state
        for looked_at, transaction in enumerate(list(state.transactions())):
            if looked_at % TOLD_A_TURN == TOLD_A_TURN - 1:
                await asyncio.sleep(0)
            if transaction.holder == name and transaction.status is Status.OPEN and self.state is state:
                self._begin_end(transaction, TxnAction.ABORT)
                count += 1
        await self._written()
        return count

    async def end_all(self) -> int:
        """Abort all open transactions, and wait until every transaction has ended at all participants.

        Return the number of aborted transactions. Raises StoreError, ServiceNotReady.
        """
        await self.ready()
        count, state = 0, self.state
        for looked_at, transaction in enumerate(list(state.transactions())):
            if looked_at % TOLD_A_TURN == TOLD_A_TURN - 1:
                await asyncio.sleep(0)
            if transaction.status is Status.OPEN and self.state is state:
                self._begin_end(transaction, TxnAction.ABORT)
                count += 1
        await self._ends_of(list(self.state.transactions()))
        return count

    async def add(
        self,
        transaction: Transaction,
        partitions: Iterable[str],
        subscriptions: Iterable[tuple[str, str]],
        as_sent: Mapping[str, str] = ALL_IN_FULL,
        *,
        is_operator: bool = False,
    ) -> None:
        """Add topics (`partitions`) and subscriptions as participants. Durable on return. Raises InvalidTxnStatus,
        NotAllowedError for too many participants, TooManyRequests for lack of memory, and StoreError.

        `as_sent`: topic names as the client sent them, by full name. `is_operator`: the caller is a superuser, which
        may use memory beyond the fair share of the role or address to which the transaction is charged.
        """
        record = self.state.add(transaction, partitions, subscriptions, as_sent)
        if record is None:
            await self._written()  # An earlier request for the same participants may not be durable yet.
            return
        limit = self._runtime.config.max_participants_per_transaction
        count = transaction.participants + len(record.partitions) + len(record.subscriptions)
        if count > limit:
            raise NotAllowedError(
                f"transaction {transaction.id} would have {count} partitions and subscriptions; the maximum is "
                f"{limit} (maxParticipantsPerTransaction)"
            )
        limits, holder = self._context.limits, Holder(transaction.holder, is_operator)
        if not limits.has_memory(holder):
            raise TooManyRequests(
                f"a partition or subscription cannot be added to transaction {transaction.id}: "
                f"{limits.no_memory(holder)}"
            )
        await _settled(self._append(record))

    async def end(self, transaction: Transaction, action: TxnAction) -> None:
        """Commit or abort the transaction. On return, all participants have confirmed durably.

        If the same action is already in progress, wait for it. Raises InvalidTxnStatus if the opposite action is in
        progress or the transaction belongs to a sink and `action` is a commit, and StoreError.
        """
        ended = self._begin_end(transaction, action)
        await asyncio.shield(ended)

    def _begin_end(self, transaction: Transaction, action: TxnAction) -> asyncio.Future[None]:
        record = self.state.end(transaction, action)
        if record is not None:
            durable = self._append(record)
            ended = self._ended[transaction.id.least] = asyncio.get_running_loop().create_future()
            durable.add_done_callback(lambda done: self._end_is_durable(transaction, done))
            return ended
        found = self._ended.get(transaction.id.least)
        if found is None:
            found = asyncio.get_running_loop().create_future()
            if self.waits_for_room(transaction):
                found.set_result(None)
            else:
                self._ended[transaction.id.least] = found
        return found

    def _end_is_durable(self, transaction: Transaction, durable: asyncio.Future[None]) -> None:
        if not durable.cancelled() and durable.exception() is None:
            self._tell(transaction)

    def _ends_are_durable(self, transactions: Sequence[Transaction], durable: asyncio.Future[None]) -> None:
        if not durable.cancelled() and durable.exception() is None:
            self._tasks.start(self._tell_each(transactions), "end a batch")

    async def _tell_each(self, transactions: Sequence[Transaction]) -> None:
        for index, transaction in enumerate(transactions):
            self._tell(transaction)
            if index % TOLD_A_TURN == TOLD_A_TURN - 1:
                await asyncio.sleep(0)

    def _tell(self, transaction: Transaction) -> None:
        if self.state.find(transaction.id.least) is not transaction or self.phase is not Phase.READY:
            return  # The log was read again.
        participants = [Participant(topic) for topic in transaction.partitions]
        participants += [Participant(topic, subscription) for topic, subscription in transaction.subscriptions]
        action = transaction.action
        assert action is not None
        self.endings.begin(transaction.id, action, participants)

    def _all_told(self, ending: Ending) -> None:
        transaction = self.state.find(ending.txn_id.least)
        if transaction is None or transaction.action is not ending.action:
            return  # The log was read again.
        # The end is durable, and all participants have confirmed durably. If the record that removes the transaction is
        # lost, they are notified again. So the caller does not wait for it.
        ended = self._ended.pop(transaction.id.least, None)
        if ended is not None and not ended.done():
            ended.set_result(None)
        self._told[transaction.id.least] = transaction
        if len(self._told) == 1:
            self._forget(self._told)

    def _forget(self, told: dict[int, Transaction]) -> None:
        if told is not self._told:
            return
        for transaction in list(islice(told.values(), TOLD_A_TURN)):
            action = transaction.action
            assert action is not None, "it ends"
            try:
                durable = self._append(self.state.ended(transaction))
            except StoreError as error:
                if not self._is_log_full:
                    self._is_log_full = True
                    logs.warning("transaction.removal_failed", transaction=str(transaction.id), error=str(error))
                self._runtime.call_later(FULL_DISK_RETRY_MS / 1000, lambda: self._forget(told))
                return
            except ServiceNotReady:
                return  # The log is read again, and participants are notified again.
            self._is_log_full = False
            del told[transaction.id.least]
            durable.add_done_callback(functools.partial(self._is_ended, transaction, action))
            self._timeouts.tidy(len(self.state), lambda least: self.state.find(least) is not None)
        self._context.admit_waiting()
        if told:
            self._runtime.call_later(0, lambda: self._forget(told))

    def waits_for_room(self, transaction: Transaction) -> bool:
        """Return whether the transaction has ended, and only its removal from the log waits for disk space."""
        return transaction.id.least in self._told

    def _is_ended(self, transaction: Transaction, action: TxnAction, durable: asyncio.Future[None]) -> None:
        if durable.cancelled() or durable.exception() is not None:
            return  # The log is read again, and participants are notified again.
        counters = self.counters
        if action is TxnAction.COMMIT:
            counters.committed += 1
        else:
            counters.aborted += 1
        counters.took_ms.add(max(0, self._runtime.clock.wall_ms() - transaction.opened_ms))

    # --- sinks ---------------------------------------------------------------------------------------------------------

    async def open_of_sink(self, label: Label, asking: Asking, timeout_ms: int, *, takes_over: bool) -> TxnId | None:
        """Open a transaction for a batch of a sink. Return None if that batch, or a later batch, was committed.

        Transactions that earlier runs of the writer left open, up to that batch, are aborted. `label`: sink, batch and
        writer. `asking`: the role of the request. `takes_over`: replace another writer of the sink. Raises the errors
        of `new`, AuthorizationError if the sink belongs to another role, and InvalidTxnStatus if it belongs to another
        writer and `takes_over` is not set.
        """
        await self._ready_for_new()
        if self._room_for_mark(label, asking, takes_over=takes_over) is None:
            await self._written()
            return None
        for each in self.state.left_by_other_runs(label, asking):
            self._begin_end(each, TxnAction.ABORT)
        slot = await self._slots.acquire(asking.holder)
        try:
            if self._room_for_mark(label, asking, takes_over=takes_over) is None:  # Committed during the wait.
                await self._written()
                return None
            return await self._open(slot, timeout_ms, asking.owner, label)
        finally:
            slot.release()
            self.admit_waiting()

    def _room_for_mark(self, label: Label, asking: Asking, *, takes_over: bool) -> str | None:
        """Return the sink whose mark (last committed batch) must be deleted before this batch can be committed, "" if
        none; None if the batch, or a later one, is committed.

        Raises the errors of `Marks.is_repeat` and `Marks.makes_room`.
        """
        config, marks = self._runtime.config, self.state.marks
        if marks.is_repeat(label, asking, takes_over=takes_over):
            return None
        return marks.makes_room(
            label.sink,
            asking.holder,
            config.max_transaction_sinks_per_coordinator,
            config.transaction_sink_retention_in_minutes * 60_000,
            self._runtime.clock.wall_ms(),
        )

    async def commit_together(self, label: Label, leasts: Sequence[int], asking: Asking, *, takes_over: bool) -> bool:
        """Commit the transactions `leasts` (low halves of their ids) of a sink's batch together, and abort the sink's
        other open transactions up to that batch. Durable on return; participants are notified later (`sink_committed`).

        If the batch, or a later one, was committed before, abort these transactions and return False. `label`: sink,
        batch and writer. `asking`: the role of the request. `takes_over`: replace another writer of the sink. Raises
        TransactionNotFound, InvalidTxnStatus and AuthorizationError as `CoordinatorState.together`, NotAllowedError for
        too many transactions, TooManyRequests for too many sinks, ServiceNotReady and StoreError.
        """
        await self.ready()
        config = self._runtime.config
        if len(leasts) > config.max_transactions_committed_together:
            raise NotAllowedError(
                f"the request commits {len(leasts)} transactions together; the maximum is "
                f"{config.max_transactions_committed_together} (maxTransactionsCommittedTogether)"
            )
        record = None
        forgets = self._room_for_mark(label, asking, takes_over=takes_over)
        if forgets is not None:
            now_ms = self._runtime.clock.wall_ms()
            record = self.state.together(label, leasts, asking, now_ms, forgets, takes_over=takes_over)
        if record is None:
            self.counters.repeated_batches += 1
            for each in self.state.left_open(label.sink, label.batch, asking):
                self._begin_end(each, TxnAction.ABORT)
            await self._written()
        else:
            self.counters.batches += 1
            durable = self._append(record)
            self.state.marks.held_by(label.sink, asking.holder.name)
            ending = [self.state.existing(TxnId(self.id, least)) for least in (*record.commits, *record.aborts)]
            for each in ending:
                self._ended[each.id.least] = asyncio.get_running_loop().create_future()
            durable.add_done_callback(lambda done: self._ends_are_durable(ending, done))
            await _settled(durable)
        return record is not None

    async def sink_committed(self, sink: str) -> None:
        """Wait until all participants of the sink's committed batches have confirmed. Raises StoreError."""
        await self._ends_of(each for each in self.state.of_sink(sink) if each.action is TxnAction.COMMIT)

    async def abort_of_sink(self, sink: str, up_to_batch: int, asking: Asking) -> int:
        """Abort the open transactions of the sink up to and including the batch `up_to_batch`, except those that the
        caller may not end, and wait until their participants have confirmed. Return their number. Raises StoreError,
        ServiceNotReady.
        """
        await self.ready()
        left = self.state.left_open(sink, up_to_batch, asking)
        for each in left:
            self._begin_end(each, TxnAction.ABORT)
        await self._ends_of(left)
        return len(left)

    async def forget_sink(self, sink: str) -> None:
        """Delete the record of the last committed batch of a sink, durably. Afterwards, repeated batches are committed
        again. Raises StoreError, ServiceNotReady.
        """
        await self.ready()
        if self.state.marks.get(sink) is not None:
            await _settled(self._append(self.state.forget_sink(sink)))

    async def forget_sinks_of(self, name: str) -> int:
        """Delete the records of all sinks of the holder `name` (role or address), durably. Return their number. Raises
        StoreError, ServiceNotReady.
        """
        await self.ready()
        found = self.state.marks.of(name)
        for sink in found:
            self._append(self.state.forget_sink(sink))
        await self._written()
        return len(found)

    async def _written(self) -> None:
        if self.log is not None:
            await self.log.written()

    async def _ends_of(self, transactions: Iterable[Transaction]) -> None:
        for ended in [self._begin_end(each, each.action) for each in transactions if each.action is not None]:
            await asyncio.shield(ended)

    # --- timeouts -----------------------------------------------------------------------------------------------------

    def _time_out_at(self, transaction: Transaction, due_ms: float) -> None:
        if transaction.timeout_ms >= LONGEST_MS:
            return
        self._timeouts.add(transaction.id.least, due_ms)
        self._arm()

    def _arm(self) -> None:
        due_ms = self._timeouts.next_ms
        if due_ms is None or (self._timer_ms is not None and self._timer_ms <= due_ms + GRAIN_MS):
            return
        self._timer_ms = due_ms
        # At most a day, because event loops accept no longer timers; then the timer is set again.
        delay_s = min(86400.0, max(0.0, due_ms - self._runtime.clock.monotonic_ms()) / 1000)
        self._runtime.call_later(delay_s, lambda: self._timer_fired(due_ms))

    def _timer_fired(self, due_ms: float) -> None:
        if self._timer_ms == due_ms:
            self._timer_ms = None
        if self.phase is Phase.READY:
            self.check_timeouts()

    def check_timeouts(self) -> None:
        """Abort expired transactions, at most `TIMED_OUT_AT_ONCE` now and the rest in later iterations of the event
        loop.
        """
        now_ms = self._runtime.clock.monotonic_ms()
        for least in self._timeouts.due(now_ms, TIMED_OUT_AT_ONCE):
            transaction = self.state.find(least)
            if transaction is None or transaction.status is not Status.OPEN:
                continue
            try:
                self._begin_end(transaction, TxnAction.ABORT)
            except StoreError:
                self._timeouts.add(least, now_ms + FULL_DISK_RETRY_MS)
            except ServiceNotReady:
                break  # The log is read again, with its timeouts.
            else:
                self.counters.timed_out += 1
        self._arm()


async def _settled(durable: asyncio.Future[None]) -> None:
    await asyncio.shield(durable)
