"""A weak role takes all that it gets of what clients share, and an honest role beside it is served; operators take it back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import pytest
from tests.protocol.test_console import SECURED, Look, token
from tests.protocol.test_taking_part import connected
from tests.protocol.test_transactions import B, ask, opened
from tests.support.async_client import AsyncClient, binary_port
from tests.support.memory_broker import MemoryBroker, memory_broker
from tests.support.rest import Answer, call

from pybroker.errors import PersistenceError, TooManyRequests
from pybroker.model.names import NamespaceName
from pybroker.model.policies import AuthAction, NamespacePolicies
from pybroker.model.txn_id import TxnAction
from pybroker.transactions import transaction_slots
from pybroker.waiting.fair_shares import Holder
from pybroker.waiting.request_holder import ASKING

NAMESPACE = "public/default"
LIVE = f"/admin/v3/console/live/persistent/{NAMESPACE}/t"
LEASES = f"/admin/v3/entries/persistent/{NAMESPACE}/leases"
SINKS = "/admin/v3/transactions/sinks"
SHARES = "/admin/v3/shares"


async def http(broker: MemoryBroker, role: str | None, method: str, path: str, body: object = None) -> Answer:
    headers = {} if role is None else token(role)
    return await asyncio.to_thread(call, f"http://127.0.0.1:{broker.port}{path}", method, body=body, headers=headers)


@asynccontextmanager
async def secured(**settings: Any) -> AsyncIterator[MemoryBroker]:
    """A broker with a super user `admin`, and two roles that may read and write; `nobody` has no right."""

    def grant(policies: NamespacePolicies) -> None:
        rights = [AuthAction.PRODUCE, AuthAction.CONSUME]
        policies.auth_policies.namespace_auth = {"weak": rights, "honest": rights}

    async with memory_broker(**SECURED, anonymous_user_role="anonymous", **settings) as broker:
        await broker.service.resources.update_namespace(NamespaceName.parse(NAMESPACE), grant)
        yield broker


async def shown(broker: MemoryBroker, resource: str, role: str | None = "admin") -> dict[str, Any]:
    found: dict[str, Any] = (await http(broker, role, "GET", SHARES)).json[resource]
    return found


async def ended(broker: MemoryBroker, resource: str, holder: str, role: str | None = "admin") -> int:
    answer = await http(broker, role, "DELETE", f"{SHARES}/{resource}?holder={quote(holder)}")
    assert answer.status == 200, answer
    count: int = answer.json["ended"]
    return count


# --- transactions ----------------------------------------------------------------------------------------------------


async def flood(client: AsyncClient, count: int, ttl_ms: int = (1 << 62)) -> None:
    """Ask for so many transactions without waiting for answers."""
    assert "error" not in await ask(client, B.TC_CLIENT_CONNECT_REQUEST, tc_id=0)
    for _ in range(count):
        client.ask(B.NEW_TXN, tc_id=0, txn_ttl_seconds=ttl_ms)


@pytest.mark.parametrize("is_secured", [True, False], ids=["by role", "by connection"])
async def test_transactions_that_one_client_keeps_open_leave_room_for_another_client(is_secured: bool) -> None:
    limits = {"max_active_transactions_per_coordinator": 64}
    running = secured(**limits) if is_secured else memory_broker(**limits)  # type: ignore[arg-type]
    async with running as broker, binary_port(broker) as port:
        weak = await connected(port, "nobody") if is_secured else await port.connect()
        honest = await connected(port, "honest") if is_secured else await port.connect()
        await flood(weak, 100)
        coordinator = await broker.service.transactions.connect(0)
        await broker.until(lambda: coordinator.waiting == 100 - 45)
        for _ in range(5):
            await opened(honest, 0)
        assert coordinator.state.counts.largest(2)[0][1] == 45, "three quarters of 60"
        if is_secured:
            for _ in range(10):
                await opened(await connected(port, "admin"), 0)
            assert len(coordinator.state) == 60
            await opened(await connected(port, "admin"), 0)  # from the reserve


async def test_memory_of_transactions_that_one_role_takes_leaves_room_for_another_role() -> None:
    async with secured(max_open_transactions_size_in_mb=1) as broker, binary_port(broker) as port:
        await flood(await connected(port, "nobody"), 900)
        await flood(await connected(port, "nobody"), 900)  # another connection of the same role
        coordinator = await broker.service.transactions.connect(0)
        await broker.until(lambda: coordinator.waiting + len(coordinator.state) == 1800)
        for coordinator_id in (0, 1):
            await opened(await connected(port, "honest"), coordinator_id)
        transactions = await shown(broker, "transactions")
        assert transactions["holders"][0]["holder"] == "role nobody"
        assert transactions["holders"][0]["used"] / transactions["limit"] == pytest.approx(0.70, abs=0.01)
        assert transactions["holders"][1] == {"holder": "role honest", "used": 1400}


async def test_role_over_its_share_of_transactions_is_served_when_its_own_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_slots, "WAIT_S", 0.05)
    async with secured(max_active_transactions_per_coordinator=16) as broker, binary_port(broker) as port:
        weak = await connected(port, "weak")
        mine = [await opened(weak, 0) for _ in range(12)]
        refused = await ask(weak, B.NEW_TXN, tc_id=0, txn_ttl_seconds=1000)
        assert refused["error"] == "TooManyRequests"
        assert "role weak holds 12 of 16 open transactions of transaction coordinator 0" in refused["message"]
        assert "maxActiveTransactionsPerCoordinator" in refused["message"]
        await ask(weak, B.END_TXN, txnid_most_bits=0, txnid_least_bits=mine[0].least, txn_action=1)
        await opened(weak, 0)


async def test_flood_of_waiting_requests_makes_room_for_one_of_another_role(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_slots, "MAX_WAITING", 20)
    async with secured(max_active_transactions_per_coordinator=1) as broker, binary_port(broker) as port:
        weak, honest = await connected(port, "weak"), await connected(port, "honest")
        first = await opened(weak, 0)
        await flood(weak, 20)
        coordinator = await broker.service.transactions.connect(0)
        await broker.until(lambda: coordinator.waiting == 20)
        request = honest.ask(B.NEW_TXN, tc_id=0, txn_ttl_seconds=1000)
        refused = await weak.next()
        assert (refused["type"], refused["error"]) == ("NEW_TXN_RESPONSE", "TooManyRequests")
        assert "most of them from role weak" in refused["message"]
        for _ in range(2):  # one that waits longer first, then roles take turns
            open_now = next(iter(coordinator.state.transactions()))
            await coordinator.end(open_now, TxnAction.ABORT)
        assert "error" not in await honest.answer(request)
        assert first.least < next(iter(coordinator.state.transactions())).id.least


async def test_transaction_with_an_endless_time_out_ends_at_the_maximum() -> None:
    async with memory_broker(max_transaction_timeout_in_seconds=60) as broker, binary_port(broker) as port:
        client = await port.connect()
        for ttl_ms in (1000, 1 << 62):
            await opened(client, 0, ttl_ms)
        coordinator = await broker.service.transactions.connect(0)
        assert [each.timeout_ms for each in coordinator.state.transactions()] == [1000, 60_000]


async def test_maximum_time_out_holds_for_transactions_that_a_restart_finds() -> None:
    async with memory_broker(max_transaction_timeout_in_seconds=0) as broker, binary_port(broker) as port:
        await opened(await port.connect(), 0, 1 << 62)
        coordinator = await broker.service.transactions.connect(0)
        changed = await broker.rest("POST", "/brokers/configuration/maxTransactionTimeoutInSeconds/60")
        assert changed.status == 200
        broker.clock.now_ms += 61_000
        coordinator._log_failed(PersistenceError("a planned failure"))  # type: ignore[arg-type]
        await coordinator.ready()
        await broker.until(lambda: not len(coordinator.state))
        assert coordinator.counters.timed_out == 1


async def test_operator_aborts_all_transactions_of_a_role() -> None:
    async with secured() as broker, binary_port(broker) as port:
        await flood(await connected(port, "nobody"), 600)
        await opened(await connected(port, "honest"), 1)
        coordinator = await broker.service.transactions.connect(0)
        await broker.until(lambda: len(coordinator.state) == 600)
        assert (await http(broker, "weak", "DELETE", f"{SHARES}/transactions?holder=role%20nobody")).status == 401
        assert await ended(broker, "transactions", "role nobody") == 600
        await broker.until(lambda: not len(coordinator.state))
        assert (await shown(broker, "transactions"))["holders"] == [{"holder": "role honest", "used": 700}]
        assert await ended(broker, "transactions", "role nobody") == 0


# --- sinks -----------------------------------------------------------------------------------------------------------


async def test_sink_is_opened_by_no_role_that_may_not_commit_it() -> None:
    async with secured(max_transaction_sinks_per_coordinator=1, transaction_sink_retention_in_minutes=60) as broker:
        for call_name, body in (("open", {"batch": 0}), ("commit", {"batch": 0})):
            refused = await http(broker, "nobody", "POST", f"{SINKS}/s/{call_name}", body)
            assert (refused.status, "has no permission to produce" in refused.text) == (403, True), call_name
        assert (await http(broker, "honest", "POST", f"{SINKS}/s/commit", {"batch": 0})).status == 200
        for call_name, body in (("open", {"batch": 1}), ("commit", {"batch": 1})):
            other = await http(broker, "weak", "POST", f"{SINKS}/s/{call_name}", body)
            assert (other.status, "another role" in other.text) == (403, True), call_name
            # Of the same coordinator as s, which has no place for another one.
            full = await http(broker, "honest", "POST", f"{SINKS}/{same_home('s')}/{call_name}", body)
            assert (full.status, "maxTransactionSinksPerCoordinator" in full.text) == (429, True), call_name
        assert not any(len(each.state) for each in broker.service.transactions.running()), "something was opened"


def same_home(sink: str) -> str:
    """Another sink of the same coordinator."""
    from pybroker.transactions.sinks import home_of

    return next(name for number in range(1000) if home_of(name := f"x{number}") == home_of(sink))


async def test_sinks_of_one_role_leave_places_for_another_role_and_an_operator_takes_them_back() -> None:
    from pybroker.transactions.sinks import home_of

    names = [name for number in range(400) if home_of(name := f"s{number}") == 0][:17]
    async with secured(max_transaction_sinks_per_coordinator=16) as broker:
        statuses = [
            (await http(broker, "weak", "POST", f"{SINKS}/{name}/commit", {"batch": 0})).status for name in names[:13]
        ]
        assert statuses == [200] * 12 + [429]
        assert (await http(broker, "honest", "POST", f"{SINKS}/{names[13]}/commit", {"batch": 0})).status == 200
        sinks = await shown(broker, "sinks")
        assert sinks["holders"] == [{"holder": "role weak", "used": 12}, {"holder": "role honest", "used": 1}]
        assert await ended(broker, "sinks", "role weak") == 12
        assert list((await http(broker, "admin", "GET", SINKS)).json) == [names[13]]


# --- read leases -----------------------------------------------------------------------------------------------------


async def lease(broker: MemoryBroker, role: str | None, reader: str, topic: str = "t") -> int:
    body = {"reader": reader, "topics": [{"topic": topic, "start": [0, 0]}]}
    status: int = (await http(broker, role, "POST", LEASES, body)).json["topics"][0].get("status", 200)
    return status


async def test_leases_of_one_role_leave_room_for_another_role_on_a_topic_and_on_the_broker() -> None:
    async with secured(max_read_leases_per_topic=8, max_read_leases=16) as broker:
        for name in ("t", "u"):
            await broker.topic(f"persistent://{NAMESPACE}/{name}")
        assert [await lease(broker, "weak", f"r{number}") for number in range(7)] == [200] * 6 + [429]
        assert await lease(broker, "weak", "r0") == 200, "one that it has is renewed"
        assert [await lease(broker, "weak", f"r{number}", "u") for number in range(7)] == [200] * 6 + [429]
        assert await lease(broker, "honest", "mine") == 200
        leases = await shown(broker, "read-leases")
        assert leases["holders"] == [{"holder": "role weak", "used": 12}, {"holder": "role honest", "used": 1}]
        assert await ended(broker, "read-leases", "role weak") == 12
        assert await lease(broker, "weak", "again") == 200


# --- live figures ----------------------------------------------------------------------------------------------------


async def look(broker: MemoryBroker, role: str) -> Look:
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    head = f"GET {LIVE} HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n"
    writer.write(f"{head}authorization: {token(role)['Authorization']}\r\n\r\n".encode())
    found = Look(reader, writer)
    found.status = int((await reader.readline()).split()[1])
    return found


async def test_live_connections_of_one_role_leave_room_for_another_role_and_end_when_an_operator_says_so() -> None:
    async with secured(console_max_live_connections=8) as broker:
        await broker.topic(f"persistent://{NAMESPACE}/t")
        looks = [await look(broker, "weak") for _ in range(7)]
        assert [each.status for each in looks] == [200] * 6 + [503]
        honest = await look(broker, "honest")
        assert honest.status == 200
        assert (await shown(broker, "live-connections"))["holders"][0] == {"holder": "role weak", "used": 6}
        assert await ended(broker, "live-connections", "role weak") == 6
        while (event := await looks[0].event())[0] != "end":
            pass
        assert event[1] == {"reason": "an operator has ended the stream"}
        await honest.point()
        for each in (*looks, honest):
            each.writer.close()


# --- queues ----------------------------------------------------------------------------------------------------------


async def test_requests_of_one_role_that_wait_for_subscriptions_leave_room_for_another_role() -> None:
    async with secured(max_waiting_subscription_requests=8) as broker, binary_port(broker) as port:
        name = f"persistent://{NAMESPACE}/t"
        topic = await broker.topic(name)
        weak, honest = await connected(port, "weak"), await connected(port, "honest")
        async with topic.subscription_lock("s", "being held by this test"):
            asked = [weak.subscribe(name, consumer_id) for consumer_id in range(8)]
            for request_id in asked[6:]:
                refused = await weak.answer(request_id)
                assert refused["error"] == "TooManyRequests"
                assert "role weak holds 6 of 8 waiting requests (maxWaitingSubscriptionRequests)" in refused["message"]
            request = honest.subscribe(name, 1)
            await broker.until(lambda: broker.service.broker_context.waiting.subscriptions.count == 7)
        assert (await honest.answer(request))["type"] == "SUCCESS"


async def test_requests_of_one_role_that_wait_for_topics_leave_room_for_another_role() -> None:
    async with secured(max_waiting_topic_requests=8) as broker:
        waiting, held = broker.service.broker_context.waiting, asyncio.Event()

        async def wait(holder: Holder) -> None:
            ASKING.set(holder)
            async with waiting.wait("it is held by this test"):
                await held.wait()

        weak, honest = Holder("role weak"), Holder("role honest")
        tasks = [asyncio.create_task(wait(weak)) for _ in range(6)]
        await broker.until(lambda: waiting.topics.count == 6)
        with pytest.raises(TooManyRequests, match="role weak holds 6 of 8 waiting requests"):
            await wait(weak)
        tasks.append(asyncio.create_task(wait(honest)))
        await broker.until(lambda: waiting.topics.count == 7)
        held.set()
        await asyncio.gather(*tasks)
        assert waiting.topics.count == 0


async def test_shares_name_a_resource_and_a_holder_or_are_refused() -> None:
    async with memory_broker() as broker:
        assert set((await http(broker, None, "GET", SHARES)).json) == {
            "transactions",
            "sinks",
            "read-leases",
            "live-connections",
        }
        assert (await http(broker, None, "DELETE", f"{SHARES}/nothing?holder=x")).status == 404
        assert (await http(broker, None, "DELETE", f"{SHARES}/sinks")).status == 412
