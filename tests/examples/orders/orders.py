"""What a user has written: orders go out, payments are taken, and what fails is tried again an hour later, three times at most."""

import json
from collections.abc import Callable
from datetime import timedelta

import pulsar

RETRY_AFTER = timedelta(hours=1)
MOST_TRIES = 3


class OrderDesk:
    """Puts orders on a topic."""

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        self._producer = client.create_producer(topic)

    def place(self, order_id: str, cents: int) -> None:
        self._producer.send(json.dumps({"order": order_id, "cents": cents}).encode(), partition_key=order_id)


class PaymentWorker:
    """Takes orders from the topic and charges them."""

    def __init__(self, client: pulsar.Client, topic: str, charge: Callable[[str, int], None]) -> None:
        self._charge = charge
        self._consumer = client.subscribe(
            topic,
            "payments",
            consumer_type=pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
            negative_ack_redelivery_delay_ms=100,
            dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(2, f"{topic}-dead", "dead"),
        )
        self._retries = client.create_producer(topic)

    def work(self, count: int) -> None:
        """Deal with so many orders."""
        for _ in range(count):
            message = self._consumer.receive(10_000)
            try:
                order = json.loads(message.data())
            except ValueError:
                self._consumer.negative_acknowledge(message)  # and after some times to the dead letters
                continue
            try:
                self._charge(order["order"], order["cents"])
            except ConnectionError:
                self._try_again(message)
            self._consumer.acknowledge(message)

    def _try_again(self, message: pulsar.Message) -> None:
        tries = int(message.properties().get("tries", "1"))
        if tries < MOST_TRIES:
            self._retries.send(message.data(), properties={"tries": str(tries + 1)}, deliver_after=RETRY_AFTER)
