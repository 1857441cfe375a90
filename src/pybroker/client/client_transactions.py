"""Transactions: sent messages and acknowledgements that take effect together or not at all.

Invariants: a topic or subscription is registered before the first operation there in the transaction; a transaction
with a failed operation is not committed; if the result is unknown, the caller gets an error.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from enum import Enum
from types import TracebackType
from typing import Any, Self

from pybroker.client.client import Client
from pybroker.client.client_connection import Connection
from pybroker.client.failures import ClientError, ConnectionLost, RequestTimedOut
from pybroker.errors import (
    BrokerError,
    InvalidTxnStatus,
    ServiceNotReady,
    TransactionCoordinatorNotFound,
    TransactionNotFound,
)
from pybroker.model.names import TopicName
from pybroker.model.txn_id import TxnAction, TxnId
from pybroker.runtime import logs
from pybroker.waiting.keyed_lock import KeyedLock
from pybroker.wire import pulsar_api_pb2 as pb

COORDINATORS_TOPIC = TopicName.parse("persistent://pulsar/system/transaction_coordinator_assign")
DEFAULT_TIMEOUT_S = 60.0

Command = pb.BaseCommand


class TransactionEnded(ClientError):
    """The transaction has ended or is ending, and accepts no more operations."""


class TransactionFailed(ClientError):
    """An operation failed, so the transaction was aborted. The cause (`__cause__`) is the first failure."""


class OutcomeUnknown(ClientError):
    """The transaction is committed or aborted: the response to its end was lost, and the coordinator no longer stores
    the transaction.

    After an abort, the broker redelivers the messages acknowledged in the transaction, so continue to consume.
    """


class TransactionState(Enum):
    """The state of a transaction, as known to this client."""

    OPEN = "open"
    ENDING = "ending"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class Coordinators:
    """The transaction coordinators of a cluster, as known to one client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._connected: dict[int, Connection] = {}
        self._connecting: KeyedLock[int] = KeyedLock()
        self._turns = itertools.count()
        self._topics: list[TopicName] = []

    async def begin(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> Transaction:
        await self._known()
        coordinator = next(self._turns) % len(self._topics)
        command = Command(type=Command.NEW_TXN)
        command.newTxn.tc_id = coordinator
        command.newTxn.txn_ttl_seconds = round(timeout_s * 1000)  # in milliseconds, despite its name
        answer = (await self.request(coordinator, command)).newTxnResponse
        return Transaction(self._client, self, TxnId(answer.txnid_most_bits, answer.txnid_least_bits))

    async def adopted(self, txn_id: TxnId) -> Transaction:
        """Return an object for a transaction that was opened without this client, such as by a REST call. Raises
        TransactionCoordinatorNotFound.
        """
        await self._known(txn_id.most)
        return Transaction(self._client, self, txn_id)

    async def _known(self, coordinator: int = 0) -> None:
        if coordinator < len(self._topics):
            return
        topics = await self._client.partitions(COORDINATORS_TOPIC)
        if topics == [COORDINATORS_TOPIC]:
            raise TransactionCoordinatorNotFound(
                "this cluster has no transaction coordinators: set transactionCoordinatorEnabled=true at the broker"
            )
        self._topics = topics
        if coordinator >= len(topics):
            raise TransactionCoordinatorNotFound(
                f"the transaction coordinator {coordinator} does not exist: this cluster has {len(topics)} coordinators"
            )

    async def request(self, coordinator: int, command: pb.BaseCommand) -> pb.BaseCommand:
        """Send a command to a transaction coordinator and return its response. Retries while a broker restarts or the
        coordinator moves.
        """

        async def attempt() -> pb.BaseCommand:
            return await self.ask_once(coordinator, command)

        return await self._client.retried(attempt)

    async def ask_once(self, coordinator: int, command: pb.BaseCommand) -> pb.BaseCommand:
        try:
            return await (await self._connection(coordinator)).request(command)
        except (TransactionCoordinatorNotFound, ServiceNotReady) as error:
            self._connected.pop(coordinator, None)
            raise ConnectionLost(
                f"transaction coordinator {coordinator} is not available at this broker and may have moved to another one: {error}"
            ) from error

    async def _connection(self, coordinator: int) -> Connection:
        async with self._connecting.held(coordinator):
            connection = self._connected.get(coordinator)
            if connection is not None and connection.failure is None:
                return connection
            connection = await self._client.connection_for(self._topics[coordinator])
            command = Command(type=Command.TC_CLIENT_CONNECT_REQUEST)
            command.tcClientConnectRequest.tc_id = coordinator
            await connection.request(command)
            self._connected[coordinator] = connection
            return connection


class Transaction:
    """A context manager that commits at the end of its block, and aborts after an exception. Created by
    `Coordinators.begin`.
    """

    def __init__(self, client: Client, coordinators: Coordinators, txn_id: TxnId) -> None:
        self.id = txn_id
        self.state = TransactionState.OPEN
        self._client = client
        self._coordinators = coordinators
        self._taking_part: dict[tuple[str, str], asyncio.Future[object]] = {}
        self._under_way: set[asyncio.Future[Any]] = set()
        self._failure: BaseException | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.state is not TransactionState.OPEN:
            return
        if error is None:
            await self.commit()
            return
        try:
            await self.abort()
        except (ClientError, BrokerError) as failure:  # the first error matters; the transaction ends by its timeout
            logs.info("client.transaction_not_aborted", transaction=str(self.id), reason=failure)

    # --- operations

    def require_open(self) -> None:
        if self.state is not TransactionState.OPEN:
            raise TransactionEnded(f"transaction {self.id} is {self.state.value}")

    async def topic_takes_part(self, topic: str) -> None:
        """Register a topic or partition at the coordinator, before the first message is sent to it in this
        transaction.
        """
        command = Command(type=Command.ADD_PARTITION_TO_TXN)
        command.addPartitionToTxn.txnid_most_bits, command.addPartitionToTxn.txnid_least_bits = self.id
        command.addPartitionToTxn.partitions.append(topic)
        await self._takes_part((topic, ""), command)

    async def subscription_takes_part(self, topic: str, subscription: str) -> None:
        """Register a subscription at the coordinator, before the first acknowledgement in this transaction."""
        command = Command(type=Command.ADD_SUBSCRIPTION_TO_TXN)
        command.addSubscriptionToTxn.txnid_most_bits, command.addSubscriptionToTxn.txnid_least_bits = self.id
        command.addSubscriptionToTxn.subscription.add(topic=topic, subscription=subscription)
        await self._takes_part((topic, subscription), command)

    async def _takes_part(self, name: tuple[str, str], command: pb.BaseCommand) -> None:
        self.require_open()
        taken = self._taking_part.get(name)
        if taken is not None:
            await asyncio.shield(taken)
        else:
            taken = self._taking_part[name] = asyncio.get_running_loop().create_future()
            try:
                await self._client.tasks.run_to_end(
                    _settle(taken, self._coordinators.request(self.id.most, command)), f"transaction {self.id}"
                )
            finally:
                if not taken.done() or taken.exception() is not None:  # the next caller registers it again
                    self._taking_part.pop(name, None)
        self.require_open()

    async def do(self, work: Coroutine[Any, Any, None]) -> None:
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.watch(done)
        await self._client.tasks.run_to_end(_settle(done, work), f"transaction {self.id}")

    def watch(self, done: asyncio.Future[Any]) -> None:
        """Delay the commit until the future `done` has a result. If the future fails, the transaction is not
        committed.
        """
        self._under_way.add(done)
        done.add_done_callback(self._done)

    def _done(self, future: asyncio.Future[Any]) -> None:
        self._under_way.discard(future)
        failure = asyncio.CancelledError() if future.cancelled() else future.exception()
        if failure is not None and self._failure is None:
            self._failure = failure

    # --- the end

    async def commit(self) -> None:
        """Wait until all operations of the transaction have ended, then commit it.

        Raises TransactionFailed if an operation failed and the transaction was aborted instead, OutcomeUnknown if the
        coordinator's response was lost, TransactionEnded, or the coordinator's error.
        """
        await self._ended(self._commit)

    async def abort(self) -> None:
        """Abort the transaction. The broker redelivers the messages that were acknowledged in it. Raises OutcomeUnknown
        if the coordinator's response was lost, TransactionEnded, or the coordinator's error.
        """
        await self._ended(self._abort)

    async def _ended(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.require_open()
        self.state = TransactionState.ENDING
        await self._client.tasks.run_to_end(work(), f"end of transaction {self.id}")

    async def settled(self) -> BaseException | None:
        await self._settled()
        return self._failure

    async def abort_ending(self) -> None:
        """Abort this transaction in the state ENDING. Only for the operation that has set this state: `commit`, for
        example, calls this when a message of the transaction has failed. Applications call `abort`.
        """
        await self._end(TxnAction.ABORT)

    async def _settled(self) -> None:
        for taken in [*self._taking_part.values()]:
            await asyncio.wait([taken])
        while self._under_way:
            await asyncio.wait([*self._under_way])
        await asyncio.sleep(0)  # the callbacks of the last futures run

    async def _commit(self) -> None:
        await self._settled()
        if self._failure is not None:
            await self._end(TxnAction.ABORT)
            raise TransactionFailed(f"transaction {self.id} was aborted: {self._failure}") from self._failure
        await self._end(TxnAction.COMMIT)

    async def _abort(self) -> None:
        await self._settled()
        await self._end(TxnAction.ABORT)

    async def _end(self, action: TxnAction) -> None:
        command = Command(type=Command.END_TXN)
        command.endTxn.txnid_most_bits, command.endTxn.txnid_least_bits = self.id
        command.endTxn.txn_action = pb.COMMIT if action is TxnAction.COMMIT else pb.ABORT
        was_lost = False

        async def attempt() -> None:
            nonlocal was_lost
            try:
                await self._coordinators.ask_once(self.id.most, command)
            except (ConnectionLost, RequestTimedOut):
                was_lost = True
                raise
            except (TransactionNotFound, InvalidTxnStatus) as error:
                if was_lost:
                    raise OutcomeUnknown(
                        f"the broker did not confirm the end of transaction {self.id}, so the transaction may "
                        f"be committed or aborted: {error}"
                    ) from error
                raise

        try:
            await self._client.retried(attempt)
        except BaseException:
            self.state = TransactionState.UNKNOWN
            raise
        self.state = TransactionState.COMMITTED if action is TxnAction.COMMIT else TransactionState.ABORTED


async def _settle(done: asyncio.Future[object], work: Coroutine[Any, Any, object]) -> None:
    try:
        await work
    except BaseException as error:
        if not done.done():
            done.set_exception(
                error if not isinstance(error, asyncio.CancelledError) else ClientError("the client was closed")
            )
            done.exception()  # mark as retrieved: there may be no waiter
        raise
    if not done.done():
        done.set_result(None)
