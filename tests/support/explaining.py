"""An embedded broker, its client, and the output of `explain`, without sockets or other processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.support.rest import Answer, call
from tests.support.waiting import until

from pybroker.broker.delivery.subscription import Subscription
from pybroker.broker.topic.topic import Topic
from pybroker.client import Message, MessageConsumer, MessageId, PulsarClient, connect
from pybroker.embedding import embed
from pybroker.embedding.embedded_broker import EmbeddedBroker

TOPIC = "persistent://public/default/t"
TIMEOUT_S = 20.0


class Explained:
    """A running broker with a client of it."""

    def __init__(self, broker: EmbeddedBroker, client: PulsarClient) -> None:
        self.broker = broker
        self.client = client

    async def rest(self, method: str, path: str, body: object = None) -> Answer:
        """Send a request below `/admin/v2`, or a path from `/admin` on."""
        path = path if path.startswith("/admin") else f"/admin/v2{path}"
        return await asyncio.to_thread(call, f"{self.broker.admin_url}{path}", method, body=body)

    async def done(self, method: str, path: str, body: object = None) -> None:
        """Send a request that must succeed."""
        answer = await self.rest(method, path, body)
        assert answer.status < 300, answer

    async def explain(self, query: str = "", subscription: str = "", topic: str = TOPIC) -> Any:
        """Return the response; `query` without a question mark."""
        at = "/" + topic.replace("://", "/") + (f"/subscription/{subscription}" if subscription else "")
        answer = await self.rest("GET", f"{at}/explain" + (f"?{query}" if query else ""))
        assert answer.status == 200, answer
        return answer.json

    async def of_message(self, message_id: object, subscription: str = "s", topic: str = TOPIC) -> list[dict[str, Any]]:
        """Return the findings for one message; `message_id` as text or as the client's object."""
        found = await self.explain(f"messageId={text_of(message_id)}", subscription, topic)
        assert found["subject"]["kind"] == "message"
        assert found["waiting"] == any(each["waits"] for each in found["findings"])
        findings: list[dict[str, Any]] = found["findings"]
        return findings

    async def of_producer(self, name: str, topic: str = TOPIC) -> list[dict[str, Any]]:
        found = await self.explain(f"producer={name}", topic=topic)
        assert found["subject"]["kind"] == "producer"
        findings: list[dict[str, Any]] = found["findings"]
        return findings

    def topic(self, name: str = TOPIC) -> Topic:
        """Return the loaded topic."""
        return self.broker.broker.service.loaded.persistent[name]

    def subscription(self, name: str = "s", topic: str = TOPIC) -> Subscription:
        return self.topic(topic).subscriptions[name]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Run the loop until `condition` is true."""
        await until(condition, pause_s=0.001)


@asynccontextmanager
async def explained(**settings: Any) -> AsyncIterator[Explained]:
    """`settings`: keys of broker.conf."""
    async with embed(**settings) as broker, connect(broker.service_url, operation_timeout_s=TIMEOUT_S) as client:
        yield Explained(broker, client)


def text_of(message_id: object) -> str:
    if not isinstance(message_id, MessageId):
        return str(message_id)
    entry = f"{message_id.ledger_id}:{message_id.entry_id}"
    return entry if message_id.batch_index < 0 else f"{entry}:{message_id.batch_index}"


def codes(findings: list[dict[str, Any]]) -> list[str]:
    return [each["code"] for each in findings]


async def received(consumer: MessageConsumer, count: int) -> list[Message]:
    return [await consumer.receive(TIMEOUT_S) for _ in range(count)]
