"""Numbers published by key, and Key_Shared consumers in their own threads, with the official client."""

from __future__ import annotations

import threading
from collections import defaultdict

import pulsar

LOW_HALF, HIGH_HALF = [(0, 32_767)], [(32_768, 65_535)]
"""Of all hashes."""


class Taker:
    """A consumer of `client` that acknowledges what it receives, after it is told to start."""

    def __init__(
        self, client: pulsar.Client, topic: str, name: str, queue: int, ranges: list[tuple[int, int]] | None = None
    ) -> None:
        policy = None
        if ranges is not None:
            policy = pulsar.ConsumerKeySharedPolicy(pulsar.KeySharedMode.Sticky, False, ranges)
        self.client = client
        self.consumer = client.subscribe(
            topic,
            "s",
            pulsar.ConsumerType.KeyShared,
            consumer_name=name,
            receiver_queue_size=queue,
            key_shared_policy=policy,
        )
        self.taken: dict[str, list[int]] = defaultdict(list)
        self.count = 0
        """Of different numbers: a restart may bring some again."""
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._take)

    def start(self) -> None:
        self._thread.start()

    def _take(self) -> None:
        while not self._is_stopped.is_set():
            try:
                message = self.consumer.receive(100)
            except pulsar.Timeout:
                continue
            number = int(message.data())
            self.count += number not in self.taken[message.partition_key()]
            self.taken[message.partition_key()].append(number)
            self.consumer.acknowledge(message)

    def stop(self) -> None:
        self._is_stopped.set()
        if self._thread.ident is not None:
            self._thread.join()


def publish_numbers(client: pulsar.Client, topic: str, keys: list[str]) -> None:
    """Publish one message for each key in order; its content is its number."""
    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    for index, key in enumerate(keys):
        producer.send_async(b"%d" % index, lambda _result, _message_id: None, partition_key=key)
    producer.flush()
    producer.close()


def numbers_by_key(keys: list[str]) -> dict[str, list[int]]:
    """Return the numbers that `publish_numbers` publishes for each key, in order."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for index, key in enumerate(keys):
        numbers[key].append(index)
    return numbers


def taken_by_all(takers: list[Taker]) -> dict[str, list[int]]:
    """Return the numbers that all takers received for each key, one taker after the other."""
    taken: dict[str, list[int]] = defaultdict(list)
    for taker in takers:
        for key, numbers in taker.taken.items():
            taken[key] += numbers
    return taken
