"""One consumer in a process of its own, to be stopped, continued and killed: `python -m tests.churn.consumer ...`.

It holds some messages for a while, acknowledges them in the order in which they came, and writes down what it does.
SIGTERM makes it leave in order.
"""

import argparse
import random
import signal
import sys
import time
from collections import deque
from pathlib import Path

import pulsar
from tests.churn.trace import ACKED, CLOSED, GIVEN_BACK, RECEIVED, Message, TraceWriter

SUBSCRIPTION = "churn"
TYPES = {
    "Exclusive": pulsar.ConsumerType.Exclusive,
    "Failover": pulsar.ConsumerType.Failover,
    "Shared": pulsar.ConsumerType.Shared,
    "Key_Shared": pulsar.ConsumerType.KeyShared,
}
MAX_HELD = 8
WAIT_MS = 50
GIVE_BACK_DELAY_MS = 200


class Worker:
    """Receives until told to leave."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._random = random.Random(options.name)
        self._trace = TraceWriter(options.traces / f"{options.name}.trace")
        self._is_leaving = False
        self._held: deque[tuple[Message, pulsar.Message]] = deque()
        signal.signal(signal.SIGTERM, self._leave)

    def _leave(self, *_: object) -> None:
        self._is_leaving = True

    def run(self) -> None:
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        client = pulsar.Client(self._options.url, logger=logger, operation_timeout_seconds=10)
        consumer = self._subscribe(client)
        if consumer is not None:
            while not self._is_leaving:
                self._step(consumer)
            self._trace.write(CLOSED, self._options.name)
            consumer.close()
        client.close()

    def _subscribe(self, client: pulsar.Client) -> pulsar.Consumer | None:
        """Try until it is let in: an Exclusive subscription takes one at a time."""
        while not self._is_leaving:
            try:
                return client.subscribe(
                    self._options.topic,
                    SUBSCRIPTION,
                    TYPES[self._options.type],
                    consumer_name=self._options.name,
                    receiver_queue_size=self._random.choice([1, 5, 50]),
                    initial_position=pulsar.InitialPosition.Earliest,
                    negative_ack_redelivery_delay_ms=GIVE_BACK_DELAY_MS,
                    batch_index_ack_enabled=True,
                    key_shared_policy=self._key_shared_policy(),
                )
            except pulsar.ConsumerBusy:
                time.sleep(0.05)
        return None

    def _key_shared_policy(self) -> pulsar.ConsumerKeySharedPolicy | None:
        if self._options.type != "Key_Shared":
            return None
        return pulsar.ConsumerKeySharedPolicy(allow_out_of_order_delivery=self._options.out_of_order)

    def _step(self, consumer: pulsar.Consumer) -> None:
        is_gentle = self._options.gentle
        limit = 0 if is_gentle else self._random.randrange(MAX_HELD)
        try:
            received = consumer.receive(WAIT_MS)
        except pulsar.Timeout:
            limit = 0
        else:
            message = Message.of_payload(received.data())
            self._trace.message(RECEIVED, message)
            self._held.append((message, received))
        while len(self._held) > limit:
            self._finish(consumer, *self._held.popleft())
        if not is_gentle and self._random.random() < 0.01:
            time.sleep(self._random.random() * 0.3)

    def _finish(self, consumer: pulsar.Consumer, message: Message, received: pulsar.Message) -> None:
        if self._random.random() < self._options.give_back:
            self._trace.message(GIVEN_BACK, message)
            consumer.negative_acknowledge(received)
        else:
            self._trace.message(ACKED, message)
            consumer.acknowledge(received)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.churn.consumer", description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--type", required=True, choices=TYPES)
    parser.add_argument("--name", required=True)
    parser.add_argument("--traces", required=True, type=Path)
    parser.add_argument("--gentle", action="store_true", help="hold and give back nothing")
    parser.add_argument("--out-of-order", action="store_true", help="waive the order of Key_Shared")
    parser.add_argument("--give-back", type=float, default=0.0, help="share of the messages that are asked for again")
    Worker(parser.parse_args(arguments)).run()


if __name__ == "__main__":
    main(sys.argv[1:])
