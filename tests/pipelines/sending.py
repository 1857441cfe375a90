"""Producers whose messages are known: each is stored once, whatever happens to the broker, as it deduplicates."""

from __future__ import annotations

import os
import random
import threading
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pulsar

LARGE_EVERY = 301
LARGE_BYTES = 150_000


class Content(NamedTuple):
    """What of a message goes all the way through."""

    value: bytes
    key: bytes | None
    properties: tuple[tuple[str, str], ...]
    event_time_ms: int | None


class Place(NamedTuple):
    """The message id that its producer was told."""

    ledger_id: int
    entry_id: int
    partition: int
    batch_index: int


def quiet_client(url: str) -> pulsar.Client:
    """An official client; what it says of a broker that is away goes nowhere. The first one's way of logging is all of theirs."""
    return pulsar.Client(url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull))


@dataclass
class Sender:
    """One official producer in a thread; `sent` and `places` may be read when `finish` has returned."""

    url: str
    topic: str
    name: str
    seed: int
    messages_per_s: int
    compression: pulsar.CompressionType
    sent: list[Content] = field(default_factory=list)
    places: dict[bytes, Place] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def start(self) -> None:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self.name)
        self._thread.start()

    def finish(self) -> None:
        """Send nothing more, and wait until all is stored."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        dice = random.Random(self.seed)
        client = quiet_client(self.url)
        producer = client.create_producer(
            self.topic,
            producer_name=self.name,
            send_timeout_millis=0,
            block_if_queue_full=True,
            batching_enabled=True,
            batching_max_messages=dice.randrange(2, 60),
            compression_type=self.compression,
        )
        begun_s = time.monotonic()
        while not self._stopping.is_set():
            due = int((time.monotonic() - begun_s) * self.messages_per_s)
            for number in range(len(self.sent), min(due, len(self.sent) + 1000)):
                self._send(producer, self._content(number, dice))
            self._stopping.wait(0.05)
        producer.flush()
        producer.close()
        client.close()

    def _content(self, number: int, dice: random.Random) -> Content:
        size = LARGE_BYTES if number % LARGE_EVERY == LARGE_EVERY - 1 else dice.randrange(200)
        value = f"{self.name}:{number}:".encode() + dice.randbytes(size)
        if number % 7 == 0:
            return Content(value, None, (), None)
        properties = (("n", str(number)), ("who", self.name))
        return Content(value, b"key-%d" % dice.randrange(40), properties, 1_700_000_000_000 + number)

    def _send(self, producer: pulsar.Producer, content: Content) -> None:
        extra: dict[str, Any] = {}
        if content.key is not None:
            extra = {
                "partition_key": content.key.decode(),
                "properties": dict(content.properties),
                "event_timestamp": content.event_time_ms,
            }

        def told(result: pulsar.Result, message_id: Any) -> None:
            if result != pulsar.Result.Ok:
                self.failures.append(f"{content.value[:20]!r}: {result}")
            elif message_id.ledger_id() >= 0:  # not of one that was stored before its answer was lost
                self.places[content.value] = Place(
                    message_id.ledger_id(), message_id.entry_id(), message_id.partition(), message_id.batch_index()
                )

        self.sent.append(content)
        producer.send_async(content.value, told, **extra)
