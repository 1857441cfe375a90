"""The user's tests of it. They run with the embedded broker, and with a real one where no time is moved."""

import asyncio
import unittest
from collections.abc import Iterator
from typing import Any

import pulsar
import pulsar.asyncio
import pytest
from orders import OrderDesk, PaymentWorker  # type: ignore[import-not-found]

from pybroker.testing import PulsarTestCase


class Bank:
    """Takes money, or is closed."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, int]] = []
        self.is_open = True

    def charge(self, order_id: str, cents: int) -> None:
        if not self.is_open:
            raise ConnectionError("the bank is closed")
        self.taken.append((order_id, cents))


def quiet_client(url: str) -> pulsar.Client:
    return pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


@pytest.fixture(scope="session")
def client(pulsar_broker: Any) -> Iterator[pulsar.Client]:
    connected = quiet_client(pulsar_broker.service_url)
    yield connected
    connected.close()


@pytest.fixture
def topic(pulsar_broker: Any) -> str:
    return str(pulsar_broker.topic())


def test_an_order_is_charged_once(client: pulsar.Client, topic: str, wait_for_backlog: Any) -> None:
    bank = Bank()
    worker = PaymentWorker(client, topic, bank.charge)
    OrderDesk(client, topic).place("a", 100)
    worker.work(1)
    wait_for_backlog(topic, "payments", 0)
    assert bank.taken == [("a", 100)]


def test_what_cannot_be_read_becomes_a_dead_letter(client: pulsar.Client, topic: str, received: Any) -> None:
    dead = client.subscribe(f"{topic}-dead", "looks", initial_position=pulsar.InitialPosition.Earliest)
    worker = PaymentWorker(client, topic, Bank().charge)
    client.create_producer(topic).send(b"{")
    worker.work(3)
    with pytest.raises(pulsar.Timeout):
        worker._consumer.receive(500)
    assert [message.data() for message in received(dead)] == [b"{"]


def test_an_order_that_the_bank_does_not_take_is_tried_an_hour_later(
    client: pulsar.Client, topic: str, pulsar_broker: Any
) -> None:
    bank = Bank()
    bank.is_open = False
    worker = PaymentWorker(client, topic, bank.charge)
    OrderDesk(client, topic).place("a", 100)
    worker.work(1)
    pulsar_broker.clock.advance(minutes=59)
    with pytest.raises(pulsar.Timeout):
        worker._consumer.receive(100)
    bank.is_open = True
    pulsar_broker.clock.advance(minutes=1)
    worker.work(1)
    assert bank.taken == [("a", 100)]


def test_orders_that_were_placed_survive_a_crash_of_the_broker(
    client: pulsar.Client, topic: str, pulsar_broker: Any
) -> None:
    bank = Bank()
    worker = PaymentWorker(client, topic, bank.charge)
    desk = OrderDesk(client, topic)
    desk.place("a", 1)
    pulsar_broker.restart()
    desk.place("b", 2)
    while len(set(bank.taken)) < 2:
        worker.work(1)
    assert set(bank.taken) == {("a", 1), ("b", 2)}


def test_the_asyncio_client_works_as_well(pulsar_broker: Any, topic: str, received_async: Any) -> None:
    async def there_and_back() -> list[bytes]:
        asynchronous = pulsar.asyncio.Client(
            pulsar_broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        consumer = await asynchronous.subscribe(topic, "s")
        producer = await asynchronous.create_producer(topic)
        await producer.send(b"one")
        await producer.send(b"two")
        messages = await received_async(consumer, 2)
        await asynchronous.close()
        return [message.data() for message in messages]

    assert asyncio.run(there_and_back()) == [b"one", b"two"]


class OrdersTestCase(PulsarTestCase):
    def test_unittest_has_a_broker_too(self) -> None:
        client = quiet_client(self.pulsar_broker.service_url)
        self.addCleanup(client.close)
        topic = self.pulsar_broker.topic("orders")
        bank = Bank()
        worker = PaymentWorker(client, topic, bank.charge)
        OrderDesk(client, topic).place("a", 7)
        worker.work(1)
        self.wait_for_backlog(topic, "payments")
        assert bank.taken == [("a", 7)]


if __name__ == "__main__":
    unittest.main()
