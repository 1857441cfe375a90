"""Numbers in paths and queries of REST calls: no number of 64 bits, and no text that is none, is an internal error."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

from tests.protocol.test_transactions import ask, ids
from tests.support.async_client import AsyncClient, Type, binary_port
from tests.support.memory_broker import MemoryBroker
from tests.support.rest import call
from tests.support.transactions import send

from pybroker.model.txn_id import TxnId
from pybroker.wire import pulsar_api_pb2 as pb

TOPIC = "persistent://public/default/t"
SUBSCRIPTION = "/admin/v2/persistent/public/default/t/subscription/s"
VALUES = (str((1 << 63) - 1), str(-(1 << 63)), str(1 << 63), str(1 << 32), "-1", "1_000", "x")
NAMES = {"tenant": "public", "namespace": "default", "topic": "t", "domain": "persistent", "subscription": "s"}
NUMBER_BY_NAME = re.compile(
    "ledger|entry|most|least|count|seconds|number|timestamp|index|version|partition|coordinator$"
)
PARAMETER = re.compile(r"{(\w+)(?::\w+)?}")


def calls(document: dict[str, Any], ledger_id: int) -> Iterator[tuple[str, str]]:
    """Method and path of all calls that read a number, once with each value of each number."""
    for path, operations in document["paths"].items():
        numbers = [name for name in PARAMETER.findall(path) if NUMBER_BY_NAME.search(name)]
        usual = {**NAMES, **dict.fromkeys(numbers, "0"), "ledger_id": str(ledger_id), "ledger": str(ledger_id)}
        for method, operation in operations.items():
            queries = [
                each["name"]
                for each in operation.get("parameters", [])
                if each["in"] == "query" and each.get("schema", {}).get("type") in ("integer", "number")
            ]
            for value in VALUES:
                for number in numbers:
                    yield method.upper(), filled(path, {**usual, number: value})
                for query in queries:
                    yield method.upper(), f"{filled(path, usual)}?{query}={value}"


def filled(path: str, values: dict[str, str]) -> str:
    return PARAMETER.sub(lambda found: values.get(found[1], "x"), path)


async def test_no_number_of_path_or_query_is_an_internal_error(broker: MemoryBroker) -> None:
    async with binary_port(broker) as port:
        url = f"http://127.0.0.1:{broker.port}"
        document = (await asyncio.to_thread(call, f"{url}/openapi.json", "GET")).json
        ledger_id = await with_held_message(broker, await port.connect())
        asked, failed = 0, []
        for method, path in calls(document, ledger_id):
            if method != "GET":  # The one before may have deleted it.
                await broker.topic(TOPIC)
                await asyncio.to_thread(call, url + SUBSCRIPTION, "PUT")
            answer = await asyncio.to_thread(call, url + path, method, body=None if method == "GET" else {})
            asked += 1
            if answer.status == 500:
                failed.append((method, path, answer.text))
    assert not failed
    assert asked > 200
    assert broker.service.runtime.stats.bugs == 0


async def with_held_message(broker: MemoryBroker, client: AsyncClient) -> int:
    """A message that a transaction has acknowledged on the subscription; its ledger."""
    topic = await broker.topic(TOPIC)
    await client.answer(client.subscribe(TOPIC))
    [position] = await send(broker, topic, None)
    await ask(client, Type.TC_CLIENT_CONNECT_REQUEST, tc_id=0)
    txn = TxnId(0, int((await ask(client, Type.NEW_TXN, tc_id=0, txn_ttl_seconds=60_000))["txnid_least_bits"]))
    pair = pb.Subscription(topic=TOPIC, subscription="s")
    await ask(client, Type.ADD_SUBSCRIPTION_TO_TXN, **ids(txn), subscription=[pair])
    message_id = pb.MessageIdData(ledgerId=position.ledger_id, entryId=position.entry_id)
    acked = await ask(client, Type.ACK, consumer_id=1, ack_type=0, message_id=[message_id], **ids(txn))
    assert "error" not in acked
    return position.ledger_id
