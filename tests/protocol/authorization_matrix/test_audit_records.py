"""Audit records of administrative calls and of refused accesses, over all interfaces."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from tests.protocol.authorization_matrix.clients import TOPIC, Client, client, client_of, secured_broker
from tests.protocol.authorization_matrix.http_exchange import HttpExchange
from tests.protocol.authorization_matrix.test_command_matrix import named_type
from tests.support.async_client import BinaryPort, binary_port
from tests.support.memory_broker import MemoryBroker

from pybroker.auth.refused_accesses import Cause, Interface
from pybroker.wire import pulsar_api_pb2 as pb

Type = pb.BaseCommand
STATS = "/admin/v2/persistent/acme/ns/t/stats"
Fields = dict[str, object]


class Records(logging.Handler):
    """The events of the audit log, and their fields."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, Fields]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append((record.getMessage(), getattr(record, "fields")))  # noqa: B009

    def of(self, event: str) -> list[Fields]:
        return [fields for name, fields in self.found if name == event]


@pytest.fixture
def records() -> Iterator[Records]:
    handler, logger = Records(), logging.getLogger("pybroker.audit")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


async def call(broker: MemoryBroker, caller: Client, method: str, path: str, body: object = None) -> int:
    async with HttpExchange(broker.port) as http:
        return (await http.send(method, path, body, caller.headers)).status


async def command(port: BinaryPort, caller: Client, command_type: pb.BaseCommand.Type, **fields: object) -> None:
    sender = await port.open()
    sender.send(Type.CONNECT, client_version="test", protocol_version=21, **caller.connect_fields)
    if (await sender.next())["type"] == "CONNECTED":
        assert "error" in await sender.request(command_type, **fields)


async def test_administrative_call_has_role_proxy_and_result(records: Records) -> None:
    async with secured_broker() as broker:
        path = "/admin/v2/namespaces/acme/ns/messageTTL"
        assert await call(broker, client_of("admin", "proxy"), "POST", path, 60) == 204
        assert await call(broker, client_of("super"), "POST", path, -1) == 412
        assert await call(broker, client_of("super"), "GET", path) == 200
    common = {"address": "127.0.0.1", "method": "POST", "path": path}
    assert records.of("rest.acted") == [
        {"role": "admin", "proxy_role": "proxy", **common, "status": 204, "outcome": "done"},
        {"role": "super", **common, "status": 412, "outcome": "refused"},
    ]


@pytest.mark.parametrize(
    ("name", "method", "path", "expected"),
    [
        ("none", "GET", STATS, {"role": "-", "result": "401", "cause": "authentication"}),
        ("invalid", "POST", "/admin/v2/tenants/x", {"role": "-", "result": "401", "cause": "authentication"}),
        ("expired", "GET", "/no/such/path", {"role": "-", "result": "401", "cause": "authentication"}),
        ("weak", "GET", STATS, {"role": "weak", "result": "401", "cause": "authorization"}),
        (
            "proxied-weak",
            "DELETE",
            "/admin/v2/namespaces/acme/ns",
            {"role": "weak", "proxy_role": "proxy", "result": "401", "cause": "authorization"},
        ),
        ("no-original", "GET", "/admin/v2/tenants", {"role": "proxy", "result": "401", "cause": "authorization"}),
    ],
)
async def test_refused_rest_call_is_one_record(
    records: Records, name: str, method: str, path: str, expected: Fields
) -> None:
    async with secured_broker() as broker:
        status = await call(broker, client(name, "-"), method, f"{path}?token=", None)
        assert str(status) == expected["result"]
    (found,) = records.of("access.refused")
    assert found.pop("reason")
    common = {"address": "127.0.0.1", "interface": "http", "operation": method, "target": path, "count": 1}
    assert found == common | expected
    assert not records.of("rest.acted")


PRODUCE = {"topic": TOPIC, "producer_id": 1}
COMMIT = {"topic": TOPIC, "txnid_least_bits": 0, "txnid_most_bits": 0, "txn_action": pb.TxnAction.COMMIT}


@pytest.mark.parametrize(
    ("name", "operation", "fields", "expected"),
    [
        ("none", "CONNECT", {}, {"role": "-", "result": "AuthenticationError", "cause": "authentication"}),
        ("expired", "CONNECT", {}, {"role": "-", "result": "AuthenticationError", "cause": "authentication"}),
        ("no-original", "CONNECT", {}, {"role": "-", "result": "AuthorizationError", "cause": "authorization"}),
        ("weak", "PRODUCER", PRODUCE, {"role": "weak", "target": TOPIC, "result": "AuthorizationError"}),
        (
            "proxied-weak",
            "PARTITIONED_METADATA",
            {"topic": TOPIC},
            {"role": "weak", "proxy_role": "proxy", "target": TOPIC, "result": "AuthorizationError"},
        ),
        ("weak", "END_TXN_ON_PARTITION", COMMIT, {"role": "weak", "result": "TransactionNotFound"}),
    ],
)
async def test_refused_command_is_one_record(
    records: Records, name: str, operation: str, fields: dict[str, object], expected: Fields
) -> None:
    async with secured_broker() as broker, binary_port(broker) as port:
        await command(port, client(name, "-"), named_type(operation), **fields)
    (found,) = records.of("access.refused")
    assert found.pop("reason")
    common = {
        "address": "127.0.0.1",
        "interface": "binary",
        "operation": operation,
        "cause": "authorization",
        "count": 1,
    }
    assert found == common | expected


async def test_refused_topic_of_a_plan_is_one_record(records: Records) -> None:
    async with secured_broker() as broker:
        path = "/admin/v3/entries/persistent/acme/ns/plan"
        assert await call(broker, client_of("weak"), "POST", path, {"topics": [{"topic": "t"}]}) == 200
    (found,) = records.of("access.refused")
    assert (found["role"], found["target"], found["result"]) == ("weak", "t", "401")


async def test_many_refusals_are_counted_by_client_and_cause(records: Records) -> None:
    async with secured_broker(max_client_events_logged_per_minute=2) as broker:
        for _ in range(5):
            await call(broker, client_of("weak"), "GET", STATS)
        for _ in range(3):
            await call(broker, client("none", "-"), "GET", STATS)
        assert len(records.of("access.refused")) == 4
        totals = broker.service.runtime.stats.refused_accesses
        assert totals[Interface.HTTP, Cause.AUTHORIZATION] == 5
        assert totals[Interface.HTTP, Cause.AUTHENTICATION] == 3
    counted = records.of("access.refused")[4:]
    assert counted == [
        {"role": role, "address": "127.0.0.1", "operation": "several", "cause": cause, "count": count}
        for role, cause, count in (("weak", "authorization", 3), ("-", "authentication", 1))
    ]
