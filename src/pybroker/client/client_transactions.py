"""Transactions: messages that are sent and acknowledgements that take effect together, or not at all.

What must hold: a topic or subscription takes part before anything is done there in the transaction's name; a transaction of which
something failed is not committed; whoever cannot know how it ended is told so.
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
from pybroker.errors import BrokerError, InvalidTxnStatus, TransactionCoordinatorNotFound, TransactionNotFound
from pybroker.model.names import TopicName
from pybroker.model.txn_id import TxnAction, TxnId
from pybroker.runtime import logs
from pybroker.wire import pulsar_api_pb2 as pb

COORDINATORS_TOPIC = TopicName.parse("persistent://pulsar/system/transaction_coordinator_assign")
DEFAULT_TIMEOUT_S = 60.0

Command = pb.BaseCommand


class TransactionEnded(ClientError):
    """The transaction is over, or is being ended: nothing more can be done in its name."""


class TransactionFailed(ClientError):
    """Something of the transaction failed, so it was aborted; the cause is what failed first."""


class OutcomeUnknown(ClientError):
    """The answer to the end of a transaction was lost, and the coordinator has forgotten it since: it ended one way or the other.

    What came in the transaction comes again if it was aborted, and does not if it was committed: go on consuming.
    """


class TransactionState(Enum):
    """Where a transaction stands, as far as this client knows."""

    OPEN = "open"
    ENDING = "ending"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class Coordinators:
    """The coordinators of a cluster, as one client knows them."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._connected: dict[int, Connection] = {}
        self._connecting: dict[int, asyncio.Lock] = {}
        self._turns = itertools.count()
        self._topics: list[TopicName] = []

    async def begin(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> Transaction:
        """A new transaction of the next coordinator, which aborts it by itself after `timeout_s`."""
        await self._known()
        coordinator = next(self._turns) % len(self._topics)
        command = Command(type=Command.NEW_TXN)
        command.newTxn.tc_id = coordinator
        command.newTxn.txn_ttl_seconds = round(timeout_s * 1000)  # milliseconds, whatever it is called
        answer = (await self.request(coordinator, command)).newTxnResponse
        return Transaction(self._client, self, TxnId(answer.txnid_most_bits, answer.txnid_least_bits))

    async def adopted(self, txn_id: TxnId) -> Transaction:
        """A transaction that was opened in another way, by whoever calls. Raises TransactionCoordinatorNotFound."""
        await self._known(txn_id.most)
        return Transaction(self._client, self, txn_id)

    async def _known(self, coordinator: int = 0) -> None:
        """Learn which coordinators there are, once; and again when that one is not among them, as it may have come since."""
        if coordinator < len(self._topics):
            return
        topics = await self._client.partitions(COORDINATORS_TOPIC)
        if topics == [COORDINATORS_TOPIC]:
            raise TransactionCoordinatorNotFound("this cluster has no transaction coordinators: they are switched off")
        self._topics = topics
        if coordinator >= len(topics):
            raise TransactionCoordinatorNotFound(
                f"there is no coordinator {coordinator}: this cluster has {len(topics)}"
            )

    async def request(self, coordinator: int, command: pb.BaseCommand) -> pb.BaseCommand:
        """The coordinator's answer; tried again while a broker restarts or the coordinator moves."""

        async def attempt() -> pb.BaseCommand:
            return await self.ask_once(coordinator, command)

        return await self._client.retried(attempt)

    async def ask_once(self, coordinator: int, command: pb.BaseCommand) -> pb.BaseCommand:
        """The coordinator's answer. One that is not where it was is looked for again by whoever asks next."""
        try:
            return await (await self._connection(coordinator)).request(command)
        except TransactionCoordinatorNotFound as error:
            self._connected.pop(coordinator, None)
            raise ConnectionLost(f"transaction coordinator {coordinator} has moved: {error}") from error

    async def _connection(self, coordinator: int) -> Connection:
        async with self._connecting.setdefault(coordinator, asyncio.Lock()):
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
    """Made by `Coordinators.begin`. As a context manager it commits at the end, and aborts after an exception."""

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
        except (ClientError, BrokerError) as failure:  # what went wrong first is what matters; it ends by time
            logs.info("client.transaction_not_aborted", transaction=str(self.id), reason=failure)

    # --- what is done in its name

    def require_open(self) -> None:
        """Raises TransactionEnded."""
        if self.state is not TransactionState.OPEN:
            raise TransactionEnded(f"transaction {self.id} is {self.state.value}")

    async def topic_takes_part(self, topic: str) -> None:
        """Before the first message is sent to that topic or partition."""
        command = Command(type=Command.ADD_PARTITION_TO_TXN)
        command.addPartitionToTxn.txnid_most_bits, command.addPartitionToTxn.txnid_least_bits = self.id
        command.addPartitionToTxn.partitions.append(topic)
        await self._takes_part((topic, ""), command)

    async def subscription_takes_part(self, topic: str, subscription: str) -> None:
        """Before the first acknowledgement there."""
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
                if not taken.done() or taken.exception() is not None:  # whoever comes next asks again
                    self._taking_part.pop(name, None)
        self.require_open()

    async def do(self, work: Coroutine[Any, Any, None]) -> None:
        """Do `work` to its end, as a part of the transaction. Raises what it raises."""
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.watch(done)
        await self._client.tasks.run_to_end(_settle(done, work), f"transaction {self.id}")

    def watch(self, done: asyncio.Future[Any]) -> None:
        """The transaction is not committed before `done` is, and not at all if that fails."""
        self._under_way.add(done)
        done.add_done_callback(self._done)

    def _done(self, future: asyncio.Future[Any]) -> None:
        self._under_way.discard(future)
        failure = asyncio.CancelledError() if future.cancelled() else future.exception()
        if failure is not None and self._failure is None:
            self._failure = failure

    # --- the end

    async def commit(self) -> None:
        """All of it takes effect. Raises TransactionFailed, OutcomeUnknown, or the coordinator's refusal."""
        await self._ended(self._commit)

    async def abort(self) -> None:
        """Nothing of it takes effect; what was acknowledged in its name is delivered again. Raises as `commit` does."""
        await self._ended(self._abort)

    async def _ended(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begun once, and gone through with even if who asked is cancelled."""
        self.require_open()
        self.state = TransactionState.ENDING
        await self._client.tasks.run_to_end(work(), f"end of transaction {self.id}")

    async def settled(self) -> BaseException | None:
        """Wait until all that was done in its name is answered; what of it failed first."""
        await self._settled()
        return self._failure

    async def abort_ending(self) -> None:
        """Abort it although its end has begun, by whoever began it."""
        await self._end(TxnAction.ABORT)

    async def _settled(self) -> None:
        for taken in [*self._taking_part.values()]:
            await asyncio.wait([taken])
        while self._under_way:
            await asyncio.wait([*self._under_way])
        await asyncio.sleep(0)  # callbacks of the last ones have run

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
                    raise OutcomeUnknown(f"the answer to the end of transaction {self.id} was lost: {error}") from error
                raise

        try:
            await self._client.retried(attempt)
        except BaseException:
            self.state = TransactionState.UNKNOWN
            raise
        self.state = TransactionState.COMMITTED if action is TxnAction.COMMIT else TransactionState.ABORTED


async def _settle(done: asyncio.Future[object], work: Coroutine[Any, Any, object]) -> None:
    """Have others, who wait for `done`, know how `work` ended."""
    try:
        await work
    except BaseException as error:
        if not done.done():
            done.set_exception(
                error if not isinstance(error, asyncio.CancelledError) else ClientError("the client was closed")
            )
            done.exception()  # retrieved: nobody may be waiting
        raise
    if not done.done():
        done.set_result(None)
