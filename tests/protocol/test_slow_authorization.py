"""Authorization providers that ask a remote service: questions that wait, fail, or are not answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.protocol.authorization_matrix.clients import NAMESPACE, SECRET, TOPIC, client_of
from tests.protocol.authorization_matrix.http_exchange import HttpExchange
from tests.protocol.authorization_matrix.test_revocation import event_stream
from tests.support import credentials, held_authorization
from tests.support.async_client import AsyncClient, BinaryPort, binary_port
from tests.support.held_authorization import SUPERUSER, HeldAuthorization
from tests.support.memory_broker import MemoryBroker, memory_broker

from pybroker.auth.provider_questions import ProviderQuestions
from pybroker.model.policies import NamespacePolicies, TenantInfo
from pybroker.wire import pulsar_api_pb2 as pb

Type = pb.BaseCommand
HANG_MS = 50
"""`authorizationTimeoutMillis` of tests in which the provider gives no answer."""


class World:
    """A broker with the provider, and its binary port."""

    def __init__(self, broker: MemoryBroker, port: BinaryPort) -> None:
        self.broker = broker
        self.port = port
        provider = broker.service.broker_context.authorization._provider
        assert isinstance(provider, HeldAuthorization)
        self.provider = provider

    @property
    def questions(self) -> ProviderQuestions:
        return self.broker.service.broker_context.authorization.questions

    async def client(self, role: str) -> AsyncClient:
        client = await self.port.open()
        client.send(Type.CONNECT, client_version="test", protocol_version=21, **client_of(role).connect_fields)
        assert (await client.next())["type"] == "CONNECTED"
        return client

    async def waits_for(self, *questions: str) -> None:
        await self.broker.until(lambda: sorted(self.provider.waiting) == sorted(questions))

    async def rest(self, role: str, path: str) -> int:
        async with HttpExchange(self.broker.port) as http:
            return (await http.send("GET", f"/admin/v2{path}", None, client_of(role).headers)).status


@asynccontextmanager
async def world(**settings: Any) -> AsyncIterator[World]:
    async with (
        memory_broker(
            authentication_enabled=True,
            authentication_providers=("token",),
            token_secret_key=credentials.data_url(SECRET),
            authorization_enabled=True,
            authorization_provider=held_authorization.NAME,
            console_sample_interval_ms=100,
            **settings,
        ) as broker,
        binary_port(broker) as port,
    ):
        resources = broker.service.resources
        await resources.create_tenant(NAMESPACE.tenant, TenantInfo([], ["standalone"]))
        await resources.create_namespace(NAMESPACE, NamespacePolicies())
        await broker.topic(TOPIC)
        yield World(broker, port)


async def test_client_whose_question_waits_delays_no_other_client() -> None:
    async with world() as it:
        it.provider.permitted |= {"slow", "quick"}
        it.provider.held.add("slow")
        slow, quick = await it.client("slow"), await it.client("quick")
        asked = slow.ask(Type.PRODUCER, topic=TOPIC, producer_id=1)
        await it.waits_for("produce slow")
        assert "error" not in await quick.request(Type.PRODUCER, topic=TOPIC, producer_id=1)
        assert "error" not in await quick.answer(quick.subscribe(TOPIC))
        it.provider.release()
        assert (await slow.answer(asked))["type"] == "PRODUCER_SUCCESS"
        assert it.provider.asked.count("produce slow") == 1, "the answer is used until permissions change"


COMMANDS: dict[str, tuple[pb.BaseCommand.Type, dict[str, Any]]] = {
    "producer": (Type.PRODUCER, {"topic": TOPIC, "producer_id": 1}),
    "consumer": (Type.SUBSCRIBE, {"topic": TOPIC, "consumer_id": 1, "subscription": "s", "subType": 1}),
    "lookup": (Type.LOOKUP, {"topic": TOPIC}),
    "partitions": (Type.PARTITIONED_METADATA, {"topic": TOPIC}),
    "schema": (Type.GET_SCHEMA, {"topic": TOPIC}),
}


@pytest.mark.parametrize("what", COMMANDS)
async def test_provider_that_gives_no_answer_grants_nothing(what: str) -> None:
    command, fields = COMMANDS[what]
    async with world(authorization_timeout_millis=HANG_MS) as it:
        it.provider.permitted.add("slow")
        it.provider.held.add("slow")
        client = await it.client("slow")
        refused = await client.request(command, **fields)
        text = refused.get("message") or refused.get("error_message")
        assert "did not answer within 0.05 s (authorizationTimeoutMillis)" in str(text)
        assert "ServiceNotReady" in refused.values()
        assert (it.questions.pending, it.provider.waiting) == (0, [])
        topic = await it.broker.topic(TOPIC)
        assert not topic.producers
        assert not topic.subscriptions


async def test_rest_call_without_answer_is_503() -> None:
    async with world(authorization_timeout_millis=HANG_MS) as it:
        it.provider.held.add("slow")
        assert await it.rest("slow", f"/{TOPIC.replace('://', '/')}/stats") == 503
        assert await it.rest(SUPERUSER, f"/{TOPIC.replace('://', '/')}/stats") == 200


async def test_provider_that_fails_grants_nothing_and_keeps_its_secrets(capfd: pytest.CaptureFixture[str]) -> None:
    async with world() as it:
        it.provider.permitted.add("app")
        it.provider.broken.add("app")
        client = await it.client("app")
        for command, fields in COMMANDS.values():
            refused = await client.request(command, **fields)
            assert "AuthorizationError" in refused.values(), refused
            assert "swordfish" not in str(refused)
        assert await it.rest("app", f"/{TOPIC.replace('://', '/')}/stats") == 401
        assert it.questions.failures["PROVIDER_ERROR"] >= len(COMMANDS)
    assert "swordfish" not in "".join(capfd.readouterr())


async def test_pending_questions_are_limited_and_other_roles_are_answered() -> None:
    async with world(authorization_max_pending_questions=8) as it:
        it.provider.permitted |= {"slow", "quick"}
        it.provider.held.add("slow")
        slow, quick = await it.client("slow"), await it.client("quick")
        pending = [slow.ask(Type.PRODUCER, topic=TOPIC, producer_id=number) for number in range(2)]
        await it.waits_for("produce slow", "produce slow")
        refused = await slow.request(Type.PRODUCER, topic=TOPIC, producer_id=2)
        assert refused["error"] == "ServiceNotReady"
        assert "authorizationMaxPendingQuestions" in refused["message"]
        assert (it.questions.pending, len(it.provider.waiting)) == (2, 2)
        assert "error" not in await quick.request(Type.PRODUCER, topic=TOPIC, producer_id=1)
        it.provider.release()
        for request_id in pending:
            assert "error" not in await slow.answer(request_id)


async def test_connection_that_closes_meanwhile_leaves_nothing() -> None:
    async with world() as it:
        it.provider.permitted.add("slow")
        it.provider.held.add("slow")
        client = await it.client("slow")
        client.ask(Type.PRODUCER, topic=TOPIC, producer_id=1)
        client.subscribe(TOPIC)
        await it.waits_for("produce slow", "consume slow")
        await client.close()
        await it.waits_for()
        it.provider.release()
        await it.broker.until(lambda: not it.questions.pending)
        topic = await it.broker.topic(TOPIC)
        assert not topic.producers
        assert not topic.subscriptions


async def test_close_command_during_question_leaves_nothing_open() -> None:
    async with world() as it:
        it.provider.permitted.add("slow")
        it.provider.held.add("slow")
        client = await it.client("slow")
        client.ask(Type.PRODUCER, topic=TOPIC, producer_id=1)
        client.subscribe(TOPIC)
        closed = [
            client.ask(Type.CLOSE_PRODUCER, producer_id=1),
            client.ask(Type.CLOSE_CONSUMER, consumer_id=1),
        ]
        for request_id in closed:
            assert (await client.answer(request_id))["type"] == "SUCCESS"
        it.provider.release()
        await it.broker.until(lambda: not it.questions.pending)
        topic = await it.broker.topic(TOPIC)
        await it.broker.quiet(topic)
        assert not topic.producers
        assert not any(each.consumers for each in topic.subscriptions.values())
        [connection] = it.port.connections
        assert not connection.producers
        assert not connection.consumers


async def test_closing_topic_list_watcher_during_question_leaves_none() -> None:
    async with world() as it:
        authorization = it.broker.service.broker_context.authorization
        asked, may_answer = asyncio.Event(), asyncio.Event()

        async def require_list_topics(*_: object) -> None:
            asked.set()
            await may_answer.wait()

        it.provider.require_list_topics = require_list_topics  # type: ignore[method-assign, assignment]
        client = await it.client("app")
        fields = {"namespace": str(NAMESPACE), "watcher_id": 1, "topics_pattern": f"persistent://{NAMESPACE}/.*"}
        watched = client.ask(Type.WATCH_TOPIC_LIST, **fields)
        await asked.wait()
        assert (await client.request(Type.WATCH_TOPIC_LIST_CLOSE, watcher_id=1))["type"] == "SUCCESS"
        client.ask(Type.PARTITIONED_METADATA, topic=TOPIC)
        may_answer.set()
        await it.broker.until(lambda: not authorization.questions.pending)
        assert watched
        [connection] = it.port.connections
        assert not connection.topic_watchers
        assert not connection.watchers_being_opened


async def test_permission_that_changes_during_question_is_asked_again() -> None:
    async with world() as it:
        it.provider.permitted.add("slow")
        it.provider.held.add("slow")
        client = await it.client("slow")
        asked = client.ask(Type.PRODUCER, topic=TOPIC, producer_id=1), client.subscribe(TOPIC)
        await it.waits_for("produce slow", "consume slow")
        it.provider.permitted.discard("slow")
        it.provider.environment.permissions_changed()
        it.provider.release()  # with the permissions of the time of the question
        for request_id in asked:
            assert (await client.answer(request_id))["error"] == "AuthorizationError"
        assert not (await it.broker.topic(TOPIC)).producers


async def opened(client: AsyncClient) -> None:
    assert "error" not in await client.request(Type.PRODUCER, topic=TOPIC, producer_id=1)
    assert "error" not in await client.answer(client.subscribe(TOPIC))


async def test_provider_tells_the_broker_that_permissions_have_changed() -> None:
    async with world() as it:
        it.provider.permitted |= {"leaves", "stays"}
        leaves, stays = await it.client("leaves"), await it.client("stays")
        await opened(leaves)
        await opened(stays)
        async with event_stream(it.broker, client_of("leaves").headers) as stream, asyncio.timeout(10):
            it.provider.permitted.discard("leaves")
            it.provider.environment.permissions_changed()
            assert {(await leaves.next())["type"] for _ in range(2)} == {"CLOSE_PRODUCER", "CLOSE_CONSUMER"}
            await stream.readuntil(b"event: end")
        topic = await it.broker.topic(TOPIC)
        assert [each.peer.role for each in topic.producers.values()] == ["stays"]
        assert [each.peer.role for each in topic.subscriptions["s"].consumers] == ["stays"]


async def test_change_of_policies_closes_clients_for_which_the_provider_gives_no_answer() -> None:
    async with world(authorization_timeout_millis=HANG_MS) as it:
        it.provider.permitted |= {"slow", "quick"}
        slow, quick = await it.client("slow"), await it.client("quick")
        await opened(slow)
        await opened(quick)
        it.provider.held.add("slow")
        await it.broker.service.resources.update_namespace(NAMESPACE, lambda policies: None)
        assert {(await slow.next())["type"] for _ in range(2)} == {"CLOSE_PRODUCER", "CLOSE_CONSUMER"}
        topic = await it.broker.topic(TOPIC)
        assert [each.peer.role for each in topic.producers.values()] == ["quick"]
        assert "error" not in await quick.request(Type.PRODUCER, topic=TOPIC, producer_id=2)


async def test_change_of_policies_does_not_wait_for_a_provider_that_gives_no_answer() -> None:
    async with world() as it:  # authorizationTimeoutMillis=10000
        it.provider.permitted.add("slow")
        slow = await it.client("slow")
        await opened(slow)
        it.provider.held.add("slow")
        async with asyncio.timeout(5):
            await it.broker.service.resources.update_namespace(NAMESPACE, lambda policies: None)
        assert it.provider.waiting
        it.provider.release()
        await it.broker.until(lambda: not it.questions.pending)
        assert (await it.broker.topic(TOPIC)).producers, "the late answer was the permission"
