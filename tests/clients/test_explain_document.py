"""The ten questions of docs/how-to/explain.md: the tests create each situation, run the command and compare its output.

Numbers, times, addresses and line breaks may differ; everything else is as printed.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pulsar
import pytest
from tests.clients.conftest import new_client, path_of, receive_all, until
from tests.support.explained import Asked, owner_of, send, sticky

from pybroker.cli.program import main
from pybroker.client import connect
from pybroker.testing.broker import TestBroker
from pybroker.testing.choice import open_broker

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "explain.md"
QUESTION = re.compile(r"^### \d+\. .*?\n.*?^```console\n\$ pybroker (.*?)\n(.*?)^```", re.DOTALL | re.MULTILINE)
EXCLUSIVE, SHARED = pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Shared
KEY_SHARED, FAILOVER = pulsar.ConsumerType.KeyShared, pulsar.ConsumerType.Failover


class Situations:
    """What is wrong at three in the morning: one topic for each question, `orders-1` to `orders-10`, subscription `billing`."""

    def __init__(self, broker: TestBroker, client: pulsar.Client) -> None:
        self.broker = broker
        self.client = client
        self.kept: list[Any] = []

    def topic(self, number: int) -> str:
        return f"persistent://public/default/orders-{number}"

    def subscribe(self, number: int, kind: pulsar.ConsumerType, name: str, **options: Any) -> pulsar.Consumer:
        consumer = self.client.subscribe(self.topic(number), "billing", kind, consumer_name=name, **options)
        self.kept.append(consumer)
        return consumer

    def found(self, number: int, *codes: str, **query: str) -> None:
        Asked(self.broker, self.topic(number), "billing").until(*codes, **query)

    def no_consumer(self) -> None:
        self.subscribe(1, SHARED, "billing-a").close()
        send(self.client, self.topic(1), *[None] * 5)
        self.found(1, "no-consumers")

    def full_queue(self) -> None:
        self.subscribe(2, EXCLUSIVE, "billing-a", receiver_queue_size=2)
        send(self.client, self.topic(2), *[None] * 5)
        self.found(2, "no-permits")

    def silent(self) -> None:
        self.subscribe(3, SHARED, "billing-a", receiver_queue_size=2)
        send(self.client, self.topic(3), *[None] * 5)
        self.found(3, "no-permits")
        self.broker.clock.advance(minutes=5)
        self.found(3, "consumer-silent", "no-permits")

    def draining_key(self) -> None:
        consumer = self.subscribe(4, KEY_SHARED, "billing-a")
        keys = [f"customer-{number}" for number in range(20)]
        send(self.client, self.topic(4), *keys)
        receive_all(consumer, 20)
        self.subscribe(4, KEY_SHARED, "billing-b")
        assert owner_of(self.broker, self.topic(4), "customer-7", "billing") == "billing-b"
        send(self.client, self.topic(4), "customer-7")
        self.found(4, "key-drains")

    def unowned_key(self) -> None:
        self.subscribe(5, KEY_SHARED, "billing-a", **sticky((0, 32767)))
        at = Asked(self.broker, self.topic(5), "billing").document(key="customer-7")["subject"]
        assert at["hash"] > 32767
        send(self.client, self.topic(5), "customer-7")
        self.found(5, "hash-without-owner")

    def stands_by(self) -> None:
        for name in ("billing-a", "billing-b"):
            self.subscribe(6, FAILOVER, name)
        self.found(6, "consumer-stands-by", consumer="billing-b")

    def limit(self) -> None:
        consumer = self.subscribe(7, SHARED, "billing-a")
        self.broker.admin("POST", f"{path_of(self.topic(7))}/maxUnackedMessagesOnConsumer", 100)
        send(self.client, self.topic(7), *[None] * 105)
        receive_all(consumer, 100)
        self.found(7, "unacked-limit-consumer")

    def rate(self) -> None:
        consumer = self.subscribe(8, SHARED, "billing-a")
        rate = {"dispatchThrottlingRateInMsg": 2, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 3600}
        self.broker.admin("POST", f"{path_of(self.topic(8))}/dispatchRate", rate)
        send(self.client, self.topic(8), *[None] * 2)
        receive_all(consumer, 2)
        send(self.client, self.topic(8), *[None] * 3)
        self.found(8, "dispatch-rate")

    def transaction(self) -> None:
        self.subscribe(9, SHARED, "billing-a")

        async def open_one() -> None:
            async with connect(self.broker.service_url) as own:
                producer = await own.producer(self.topic(9), name="shop")
                await producer.send(b"in", transaction=await own.transaction(timeout_s=600))

        with contextlib.suppress(Exception):
            asyncio.run(open_one())
        send(self.client, self.topic(9), None, None)
        until(lambda: Asked(self.broker, self.topic(9), "billing").document()["waiting"])

    def delayed(self) -> None:
        self.subscribe(10, SHARED, "billing-a")
        self.client.create_producer(self.topic(10)).send(b"later", deliver_after=timedelta(minutes=30))
        self.found(10, "delayed")

    @property
    def all(self) -> list[Callable[[], None]]:
        return [
            self.silent,  # which moves the time
            self.no_consumer,
            self.full_queue,
            self.draining_key,
            self.unowned_key,
            self.stands_by,
            self.limit,
            self.rate,
            self.transaction,
            self.delayed,
        ]


def normal(text: str) -> str:
    """Return the text without numbers, times, and line breaks: these depend on the length of the numbers."""
    text = re.sub(r"\(since [^)]*\)", "(since)", " ".join(text.split()))
    text = re.sub(r"\d+d \d+h|\d+h \d+m|\d+m \d+s|\d+(\.\d+)? ?(ms|s|min|h|d|days|m)\b", "TIME", text)
    # The age of the oldest message is missing for a moment after its delivery.
    text = re.sub(r"TIME TIME\b", "TIME", text.replace(" OLDEST", ""))
    text = re.sub(r"\d[\d,.:TZ -]*", "N ", text)
    return " ".join(text.split())


@pytest.fixture(scope="module")
def situations() -> Iterator[Situations]:
    broker = open_broker(transaction_coordinator_enabled=True)
    client = new_client(broker.service_url)
    made = Situations(broker, client)
    for make in made.all:
        make()
    yield made
    client.close()
    broker.close()


@pytest.mark.parametrize("number", range(1, 11))
def test_the_page_answers_its_questions_as_the_command_does(
    situations: Situations, number: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("PULSAR_ADMIN_URL", situations.broker.admin_url)
    monkeypatch.setattr(time, "time", lambda: situations.broker.clock.now_ms() / 1000)
    questions = QUESTION.findall(PAGE.read_text(encoding="utf-8"))
    assert len(questions) == 10
    command, printed = questions[number - 1]
    assert main(shlex.split(command)) in {0, 3}
    assert normal(capsys.readouterr().out) == normal(printed)
