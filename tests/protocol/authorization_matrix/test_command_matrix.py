"""Every command of the binary protocol by every client: the answers are in `clients.py`.

A command of the broker without a row fails the test.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple, cast

from tests.protocol.authorization_matrix.clients import (
    TOPIC,
    Client,
    client,
    client_of,
    expected_answers,
    secured_broker,
)
from tests.support.async_client import AsyncClient, BinaryPort, binary_port
from tests.support.raw_client import CLOSED
from tests.support.waiting import until

from pybroker.server.command_table import command_table
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.entry_builder import framed

Type = pb.BaseCommand
SECURITY = Path(__file__).parents[3] / "docs" / "how-to" / "security.md"
LABELS = {"produce and C": "both", "same role": "renewal"}
"""Permissions with other names in the document."""
PRODUCER, CONSUMER, TRANSACTION = "producer", "consumer", "transaction"
"""Objects of the client's own connection."""
AUTHORIZATION, METADATA, NO_CONSUMER = "AuthorizationError", "MetadataError", "ConsumerNotFound"
NO_TRANSACTION, NOTHING, ENDED = "TransactionNotFound", "", "closed"
"""Answers to a command without permission: an error code, no answer, or the end of the connection."""
TOPICS = {"namespace": "acme/ns"}
NO_TRANSACTION_ID = {"txnid_most_bits": 0, "txnid_least_bits": 0}
STRING = pb.Schema(name="s", type=pb.Schema.String, schema_data=b"")
COMMITTED = {"txn_action": pb.TxnAction.COMMIT}


class Row(NamedTuple):
    """A command, the permission that it needs, and the answer without this permission."""

    command: str
    permission: str
    refused: str = NOTHING
    fields: dict[str, Any] = {}  # noqa: RUF012  (not changed)
    needs: str = ""
    """An object that the client creates first."""


ROWS = (
    Row("CONNECT", "-"),
    Row("AUTH_RESPONSE", "renewal", "AuthenticationError"),
    Row("PING", "-"),
    Row("PONG", "-"),
    Row("PARTITIONED_METADATA", "L", AUTHORIZATION, {"topic": TOPIC}),
    Row("LOOKUP", "L", AUTHORIZATION, {"topic": TOPIC}),
    Row("GET_TOPICS_OF_NAMESPACE", "P", AUTHORIZATION, TOPICS),
    Row(
        "WATCH_TOPIC_LIST", "P", AUTHORIZATION, {"watcher_id": 1, "topics_pattern": "persistent://acme/ns/.*", **TOPICS}
    ),
    Row("WATCH_TOPIC_LIST_CLOSE", "-", fields={"watcher_id": 1}),
    Row("PRODUCER", "produce", AUTHORIZATION, {"topic": TOPIC, "producer_id": 1}),
    Row("PRODUCER", "both", AUTHORIZATION, {"topic": TOPIC, "producer_id": 1, "initial_subscription_name": "first"}),
    Row("SEND", "produce", ENDED, {"producer_id": 1, "sequence_id": 0}, PRODUCER),
    Row("CLOSE_PRODUCER", "-", fields={"producer_id": 1}),
    Row("SUBSCRIBE", "C", AUTHORIZATION, {"topic": TOPIC, "consumer_id": 1, "subscription": "s", "subType": 1}),
    Row("FLOW", "C", NOTHING, {"consumer_id": 1, "messagePermits": 1}, CONSUMER),
    Row("ACK", "C", NOTHING, {"consumer_id": 1, "ack_type": 0}, CONSUMER),
    Row("REDELIVER_UNACKNOWLEDGED_MESSAGES", "C", NOTHING, {"consumer_id": 1}, CONSUMER),
    Row("GET_LAST_MESSAGE_ID", "C", METADATA, {"consumer_id": 1}, CONSUMER),
    Row("CONSUMER_STATS", "C", NO_CONSUMER, {"consumer_id": 1}, CONSUMER),
    Row("SEEK", "C", METADATA, {"consumer_id": 1, "message_publish_time": 1}, CONSUMER),
    Row("UNSUBSCRIBE", "C", METADATA, {"consumer_id": 1}, CONSUMER),
    Row("CLOSE_CONSUMER", "-", fields={"consumer_id": 1}),
    Row("GET_OR_CREATE_SCHEMA", "produce", AUTHORIZATION, {"topic": TOPIC, "schema": STRING}),
    Row("GET_SCHEMA", "L", AUTHORIZATION, {"topic": TOPIC}),
    Row("TC_CLIENT_CONNECT_REQUEST", "-", fields={"tc_id": 0}),
    Row("NEW_TXN", "-", fields={"tc_id": 0, "txn_ttl_seconds": 60_000}),
    Row("ADD_PARTITION_TO_TXN", "produce", AUTHORIZATION, {"partitions": [TOPIC]}, TRANSACTION),
    Row(
        "ADD_SUBSCRIPTION_TO_TXN",
        "C",
        AUTHORIZATION,
        {"subscription": [pb.Subscription(topic=TOPIC, subscription="s")]},
        TRANSACTION,
    ),
    Row("END_TXN", "-", fields=COMMITTED, needs=TRANSACTION),
    # A transaction of another role.
    Row("ADD_PARTITION_TO_TXN", "S", NO_TRANSACTION, {"partitions": [TOPIC]}),
    Row("ADD_SUBSCRIPTION_TO_TXN", "S", NO_TRANSACTION),
    Row("END_TXN", "S", NO_TRANSACTION, COMMITTED),
    Row("END_TXN_ON_PARTITION", "S", NO_TRANSACTION, {"topic": TOPIC, **COMMITTED}),
    Row(
        "END_TXN_ON_SUBSCRIPTION",
        "S",
        NO_TRANSACTION,
        {"subscription": pb.Subscription(topic=TOPIC, subscription="s"), **COMMITTED},
    ),
)
MESSAGE = bytes(framed(pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1), b"payload"))
HOT_COMMANDS = {"SEND", "FLOW", "ACK"}
"""Commands that the connection processes without the command table."""
WITHOUT_ANSWER = {"PONG", "SEND", "FLOW", "ACK", "REDELIVER_UNACKNOWLEDGED_MESSAGES"}


def test_every_command_of_the_broker_has_a_row() -> None:
    served = {Type.Type.Name(command) for command in command_table()} | HOT_COMMANDS
    assert {row.command for row in ROWS} == served


def test_permissions_of_commands_are_documented() -> None:
    documented = set()
    for line in SECURITY.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and cells[0] in {*LABELS, "-", "P", "L", "C", "produce", "A", "S"}:
            permission = LABELS.get(cells[0], cells[0])
            documented |= {(command, permission) for command in re.findall(r"`([A-Z_]+)`", cells[2])}
    assert documented == {(row.command, row.permission) for row in ROWS}


async def test_every_command_with_every_client() -> None:
    answers, wrong = expected_answers(), []
    async with (
        secured_broker(transaction_coordinator_enabled=True) as broker,
        binary_port(broker) as port,
    ):
        owner = await authenticated(port, client_of("owner"))
        for row in ROWS:
            for name, answer in answers[row.permission].items():
                foreign = await new_transaction(owner) if row.permission == "S" else NO_TRANSACTION_ID
                found = await outcome(port, row, client(name, row.permission), foreign)
                expected = {"ok": "ok", "no": row.refused or "ok"}.get(answer, "not connected")
                if found != expected:
                    wrong.append(f"{row.command} ({row.permission}) by {name}: {found}, expected {expected}")
    assert not wrong, "\n".join(wrong)


async def authenticated(port: BinaryPort, caller: Client) -> AsyncClient:
    found = await port.open()
    found.send(Type.CONNECT, client_version="test", protocol_version=21, **caller.connect_fields)
    assert (await found.next())["type"] == "CONNECTED"
    return found


async def new_transaction(sender: AsyncClient) -> dict[str, int]:
    """Open a transaction, and return the fields that name it."""
    await sender.request(Type.TC_CLIENT_CONNECT_REQUEST, tc_id=0)
    opened = await sender.request(Type.NEW_TXN, tc_id=0, txn_ttl_seconds=60_000)
    return {"txnid_most_bits": 0, "txnid_least_bits": int(opened["txnid_least_bits"])}


async def outcome(port: BinaryPort, row: Row, caller: Client, foreign: dict[str, int]) -> str:
    """Return "ok", "not connected", or the answer to a refused command: an error code, or `ENDED`."""
    sender = await port.open()
    try:
        sender.send(Type.CONNECT, client_version="test", protocol_version=21, **caller.connect_fields)
        connected = await sender.next()
        if connected["type"] != "CONNECTED":
            assert connected["error"] in {"AuthenticationError", AUTHORIZATION}, connected
            if row.command != "CONNECT":
                send(sender, row, foreign)  # The broker does not process further commands.
            assert await sender.next() == CLOSED
            return "not connected"
        if row.command == "CONNECT":
            return "ok"
        transaction = foreign
        if row.needs == TRANSACTION:
            transaction = await new_transaction(sender)
        elif row.needs:
            is_refused = await prepared(sender, row.needs)
            found = await answer_to(sender, row, transaction)
            return found if found != "ok" or not is_refused or row.refused == NOTHING else "ok without its object"
        found = await answer_to(sender, row, transaction)
        if row.command == "AUTH_RESPONSE" and found == "ok":
            await until(lambda: all(each.authentication is None for each in port.connections))
            sender.send(Type.PING)
            found = await next_answer(sender, 0)
        return found
    finally:
        await sender.close()


async def prepared(sender: AsyncClient, what: str) -> bool:
    """Create the producer or consumer. Return whether this is refused."""
    if what == PRODUCER:
        found = await sender.request(Type.PRODUCER, topic=TOPIC, producer_id=1)
    else:
        found = await sender.answer(sender.subscribe(TOPIC))
    assert found.get("error") in {None, AUTHORIZATION}, found
    return "error" in found


def named_type(command: str) -> pb.BaseCommand.Type:
    """Return the type of the command with this name."""
    return cast("pb.BaseCommand.Type", pb.BaseCommand.Type.Value(command))


def send(sender: AsyncClient, row: Row, transaction: dict[str, int]) -> int:
    command, fields = named_type(row.command), dict(row.fields)
    if "TXN" in row.command and "tc_id" not in fields:
        fields |= transaction
    if row.command == "AUTH_RESPONSE":
        renewed = client("super", row.permission).token.encode()
        fields["response"] = pb.AuthData(auth_method_name="token", auth_data=renewed)
    if row.command in WITHOUT_ANSWER | {"PING", "AUTH_RESPONSE"}:
        sender.send(command, MESSAGE if row.command == "SEND" else b"", **fields)
        if row.command != "PING":
            sender.send(Type.PING)
        return 0
    return sender.ask(command, **fields)


async def answer_to(sender: AsyncClient, row: Row, transaction: dict[str, int]) -> str:
    return await next_answer(sender, send(sender, row, transaction))


async def next_answer(sender: AsyncClient, request_id: int) -> str:
    """Return the answer to a request; to PING for the request id 0."""
    while True:
        found = await sender.next()
        if found == CLOSED:
            return ENDED
        error = found.get("error") or found.get("error_code")
        if error:
            return str(error)
        if (found.get("request_id") == str(request_id)) if request_id else found["type"] == "PONG":
            return "ok"
