"""Transaction commands from clients to coordinators, and from other brokers' coordinators to topics and subscriptions.

With authorization enabled, a transaction is visible only to the role that opened it, as in Pulsar. Unlike Pulsar, a
role may register only topics to which it may produce and subscriptions from which it may consume.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from pybroker.errors import AuthorizationError, BrokerError, NotAllowedError, TooManyRequests, TransactionNotFound
from pybroker.model.names import TopicName
from pybroker.model.txn_id import TxnAction, TxnId
from pybroker.server.handler import type_name
from pybroker.server.handlers.failure_responses import answered
from pybroker.server.handlers.request_limits import require_short_name
from pybroker.transactions.participant_notification import Participant
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire import replies

if TYPE_CHECKING:
    from pybroker.server.connection import Connection
    from pybroker.transactions.coordinator_state import Transaction

END_WAIT_S = 25.0
"""Time for which END_TXN waits for participants.

It is below the client's request timeout, so that the client receives an error with the missing participant.
"""
NAMES_A_TURN = 256
_SIGN = 1 << 63
_LONG = 1 << 64


class _Answer(Protocol):
    error: pb.ServerError
    message: str


class _Identified(Protocol):
    request_id: int
    txnid_most_bits: int
    txnid_least_bits: int


def _is_refused(connection: Connection, command: pb.BaseCommand, request_id: int) -> bool:
    try:
        connection.broker.transactions.require_enabled()
    except NotAllowedError as error:
        connection.send_error(type_name(command), request_id, error)
        return True
    return False


def _refusal_of(answer: _Answer) -> _Refuse:
    return _Refuse(answer)


class _Refuse:
    def __init__(self, answer: _Answer) -> None:
        self._answer = answer

    def __call__(self, error: BrokerError) -> None:
        code, text = replies.code_and_text(error)
        self._answer.error, self._answer.message = code, text


def _named(request: _Identified, response: _Identified) -> TxnId:
    response.request_id = request.request_id
    response.txnid_most_bits = request.txnid_most_bits
    response.txnid_least_bits = request.txnid_least_bits
    return TxnId(request.txnid_most_bits, request.txnid_least_bits)


async def _require_own(connection: Connection, transaction: Transaction) -> None:
    """Raise TransactionNotFound unless the role opened the transaction or is a superuser."""
    if not await connection.broker.broker_context.authorization.may_use(transaction.owner, connection.principal):
        raise TransactionNotFound(
            f"Client ({connection.role}) is neither the owner of the transaction {transaction.id} nor a super user"
        ) from AuthorizationError(f"role {transaction.owner!r} owns the transaction")


async def _require_coordinator(connection: Connection, txn_id: TxnId) -> None:
    """Raise TransactionNotFound unless the role is a superuser, as a coordinator must be."""
    if not await connection.broker.broker_context.authorization.may_all(connection.principal):
        raise TransactionNotFound(
            f"TC client ({connection.role}) is not a super user, and is not allowed to operate on transaction {txn_id}"
        ) from AuthorizationError("only coordinators, which are superusers, end a transaction on a topic")


def _action(request: pb.CommandEndTxn | pb.CommandEndTxnOnPartition | pb.CommandEndTxnOnSubscription) -> TxnAction:
    """Return the requested action. A missing action is an error, because protobuf's default would be COMMIT."""
    if not request.HasField("txn_action"):
        raise NotAllowedError("the request has no txn_action: it must be COMMIT or ABORT")
    return TxnAction(request.txn_action)


async def tc_client_connect(connection: Connection, command: pb.BaseCommand) -> None:
    """Start a transaction coordinator if it is not running, and respond when it has read its log."""
    request = command.tcClientConnectRequest
    if _is_refused(connection, command, request.request_id):
        return
    reply = pb.BaseCommand(type=pb.BaseCommand.TC_CLIENT_CONNECT_RESPONSE)
    response = reply.tcClientConnectResponse
    response.request_id = request.request_id
    with answered(connection, reply, _refusal_of(response)):
        await connection.broker.transactions.connect(request.tc_id)


async def new_txn(connection: Connection, command: pb.BaseCommand) -> None:
    """Open a transaction. `txn_ttl_seconds` contains milliseconds, despite its name."""
    request = command.newTxn
    if _is_refused(connection, command, request.request_id):
        return
    reply = pb.BaseCommand(type=pb.BaseCommand.NEW_TXN_RESPONSE)
    response = reply.newTxnResponse
    response.request_id = request.request_id
    response.txnid_most_bits = request.tc_id
    with answered(connection, reply, _refusal_of(response)):
        broker = connection.broker
        coordinator = await broker.transactions.ready(request.tc_id)
        # Protobuf decodes a negative TTL as a large unsigned number. As in Pulsar, such a transaction expires at once.
        timeout_ms = request.txn_ttl_seconds if request.txn_ttl_seconds < _SIGN else request.txn_ttl_seconds - _LONG
        owner = connection.role if broker.broker_context.authorization.enabled else None
        txn_id = await coordinator.new(timeout_ms, owner, connection.context.holder(connection))
        response.txnid_least_bits = txn_id.least


async def add_partition_to_txn(connection: Connection, command: pb.BaseCommand) -> None:
    request = command.addPartitionToTxn
    if _is_refused(connection, command, request.request_id):
        return
    reply = pb.BaseCommand(type=pb.BaseCommand.ADD_PARTITION_TO_TXN_RESPONSE)
    response = reply.addPartitionToTxnResponse
    txn_id = _named(request, response)
    with answered(connection, reply, _refusal_of(response)):
        coordinator, transaction = await connection.broker.transactions.transaction(txn_id)
        await _require_own(connection, transaction)
        _require_few(connection, request.partitions)
        names: list[str] = []
        as_sent: dict[str, str] = {}
        for text in request.partitions:
            name = TopicName.parse(text)
            await connection.broker.broker_context.authorization.require_produce(name, connection.principal)
            names.append(str(name))
            _note_as_sent(as_sent, name, text)
            if len(names) % NAMES_A_TURN == 0:
                await asyncio.sleep(0)
        is_operator = connection.context.holder(connection).is_operator
        await coordinator.add(coordinator.state.existing(txn_id), names, (), as_sent, is_operator=is_operator)


async def add_subscription_to_txn(connection: Connection, command: pb.BaseCommand) -> None:
    request = command.addSubscriptionToTxn
    if _is_refused(connection, command, request.request_id):
        return
    reply = pb.BaseCommand(type=pb.BaseCommand.ADD_SUBSCRIPTION_TO_TXN_RESPONSE)
    response = reply.addSubscriptionToTxnResponse
    txn_id = _named(request, response)
    with answered(connection, reply, _refusal_of(response)):
        coordinator, transaction = await connection.broker.transactions.transaction(txn_id)
        await _require_own(connection, transaction)
        _require_few(connection, request.subscription)
        pairs: list[tuple[str, str]] = []
        as_sent: dict[str, str] = {}
        for each in request.subscription:
            require_short_name(each.subscription, "subscription name")
            name = TopicName.parse(each.topic)
            await connection.broker.broker_context.authorization.require_consume(
                name, each.subscription, connection.principal
            )
            pairs.append((str(name), each.subscription))
            _note_as_sent(as_sent, name, each.topic)
            if len(pairs) % NAMES_A_TURN == 0:
                await asyncio.sleep(0)
        is_operator = connection.context.holder(connection).is_operator
        await coordinator.add(coordinator.state.existing(txn_id), (), pairs, as_sent, is_operator=is_operator)


def _note_as_sent(as_sent: dict[str, str], name: TopicName, text: str) -> None:
    """Record the participant's name as the client wrote it, because Pulsar's REST API returns it in this form."""
    if text != str(name):
        as_sent.setdefault(str(name), text)


def _require_few(connection: Connection, names: Sequence[object]) -> None:
    limit = connection.runtime.config.max_participants_per_transaction
    if len(names) > limit:
        raise NotAllowedError(
            f"the request has {len(names)} partitions or subscriptions; a transaction can have at most {limit} "
            "(maxParticipantsPerTransaction)"
        )


async def end_txn(connection: Connection, command: pb.BaseCommand) -> None:
    """Commit or abort a transaction, even if the connection closes meanwhile."""
    request = command.endTxn
    if _is_refused(connection, command, request.request_id):
        return
    reply = pb.BaseCommand(type=pb.BaseCommand.END_TXN_RESPONSE)
    response = reply.endTxnResponse
    txn_id = _named(request, response)
    with answered(connection, reply, _refusal_of(response)):
        coordinator, transaction = await connection.broker.transactions.transaction(txn_id)
        await _require_own(connection, transaction)
        action = _action(request)
        try:
            async with asyncio.timeout(END_WAIT_S):
                await coordinator.end(transaction, action)
        except TimeoutError:
            ending = coordinator.endings.find(txn_id)
            why = (
                f"; {len(ending.remaining)} participants have not responded, last error: {ending.last_error}"
                if ending is not None
                else ""
            )
            raise TooManyRequests(
                f"transaction {txn_id} is {transaction.status}: the coordinator ends the transaction in the background{why}"
            ) from None


async def end_txn_on_partition(connection: Connection, command: pb.BaseCommand) -> None:
    request = command.endTxnOnPartition
    reply = pb.BaseCommand(type=pb.BaseCommand.END_TXN_ON_PARTITION_RESPONSE)
    response = reply.endTxnOnPartitionResponse
    txn_id = _named(request, response)
    with answered(connection, reply, _refusal_of(response)):
        await _end_participant(connection, request, txn_id, Participant(request.topic))


async def end_txn_on_subscription(connection: Connection, command: pb.BaseCommand) -> None:
    request = command.endTxnOnSubscription
    reply = pb.BaseCommand(type=pb.BaseCommand.END_TXN_ON_SUBSCRIPTION_RESPONSE)
    response = reply.endTxnOnSubscriptionResponse
    txn_id = _named(request, response)
    with answered(connection, reply, _refusal_of(response)):
        subscription = request.subscription
        await _end_participant(connection, request, txn_id, Participant(subscription.topic, subscription.subscription))


async def _end_participant(
    connection: Connection,
    request: pb.CommandEndTxnOnPartition | pb.CommandEndTxnOnSubscription,
    txn_id: TxnId,
    participant: Participant,
) -> None:
    await _require_coordinator(connection, txn_id)
    action = _action(request)
    name = TopicName.parse(participant.topic)
    broker = connection.broker
    if not broker.transactions.is_enabled:
        if participant.subscription is None and await broker.directory.exists(name):
            raise NotAllowedError("Transaction buffer disable!")
        return
    await broker.participants.end_here(participant, txn_id, action, request.txnid_least_bits_of_low_watermark)
