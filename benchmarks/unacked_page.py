"""Cost of a page of unacknowledged messages: duration, and the longest block of the event loop.

    python -m benchmarks.unacked_page [--entries 100000]     one JSON object, milliseconds, for each kind of page

A broker in memory, with HTTP on the loopback interface, has a Key_Shared subscription with that many unacknowledged
messages. A task that runs in each event loop iteration records the longest interruption.
"""

import argparse
import asyncio
import json
import time
from typing import Any

from tests.support.memory_broker import MemoryBroker, memory_broker
from tests.support.recording_peer import RecordingPeer
from tests.support.rest import call

from pybroker.broker.delivery.acknowledgement import Acknowledged
from pybroker.broker.delivery.subscription import Subscription
from pybroker.model.txn_id import TxnId

PATH = "/persistent/public/default/t/subscription/s"
KEYS = 5000
ROUNDS = 7
PAGES = {
    "first page": "unacked?limit=100",
    "page in the middle": "unacked?limit=100&after={middle}",
    "of one consumer": "unacked?limit=100&consumer=c",
    "of one key": "unacked?limit=100&key=k77",
    "older than an hour, of which there are none": "unacked?limit=100&minAgeMs=3600000",
    "1,000 with properties": "unacked?limit=1000&withProperties=true",
    "draining hashes": "drainingHashes?limit=100",
    "waiting hashes": "waiting?limit=100",
    "ack holes": "ackHoles",
}
TRANSACTIONS = 9000
HELD_PAGES = {f"1,000 that {TRANSACTIONS:,} transactions hold": "unacked?limit=1000"}


class Probe:
    """The longest time between two loop iterations."""

    def __init__(self) -> None:
        self.longest_ms = 0.0
        self._is_over = False

    async def run(self) -> None:
        before = time.perf_counter()
        while not self._is_over:
            await asyncio.sleep(0)
            now = time.perf_counter()
            self.longest_ms = max(self.longest_ms, (now - before) * 1000)
            before = now

    def stop(self) -> None:
        self._is_over = True


async def measured(broker: MemoryBroker, path: str) -> tuple[float, float, Any]:
    probe = Probe()
    url = broker.url(f"{PATH}/{path}")
    async with asyncio.TaskGroup() as group:
        group.create_task(probe.run())
        began = time.perf_counter()
        answer = await asyncio.to_thread(call, url)
        took_ms = (time.perf_counter() - began) * 1000
        probe.stop()
    assert answer.status == 200, answer.text
    return took_ms, probe.longest_ms, answer.json


async def measure(entries: int) -> dict[str, object]:
    found: dict[str, object] = {}
    async with memory_broker(max_unacked_messages_per_subscription=0, max_unacked_messages_per_consumer=0) as broker:
        topic = await broker.topic("persistent://public/default/t")
        consumer = await broker.consumer(topic, "s", RecordingPeer(), "Key_Shared")
        consumer.flow(2 * entries)
        keys = [f"k{index}" for index in range(KEYS)]
        subscription = topic.subscriptions["s"]
        while subscription.unacked_messages < entries:
            await broker.publish(topic, 1000, keys)
            keys = keys[1000:] + keys[:1000]
            await broker.until(lambda: subscription.unacked_messages == subscription.backlog_entries)
        broker.consumer_on(subscription, RecordingPeer(), "Key_Shared", "late")
        await broker.publish(topic, 1000, keys)
        middle = (await measured(broker, "unacked?limit=1000&minAgeMs=0"))[2]["next"]
        for name, path in PAGES.items():
            found[name] = await rounds_of(broker, path.format(middle=middle))
        hold_first_entries(subscription)
        for name, path in HELD_PAGES.items():
            found[name] = await rounds_of(broker, path)
    return found


async def rounds_of(broker: MemoryBroker, path: str) -> dict[str, float]:
    rounds = [await measured(broker, path) for _ in range(ROUNDS)]
    took = sorted(took_ms for took_ms, _, _ in rounds)
    held = sorted(held_ms for _, held_ms, _ in rounds)
    return {
        "median": round(took[ROUNDS // 2], 1),
        "longest": round(took[-1], 1),
        "loop held, median": round(held[ROUNDS // 2], 1),
        "loop held, longest": round(held[-1], 1),
    }


def hold_first_entries(subscription: Subscription) -> None:
    """Acknowledge the first entries in one transaction each, so that the first page shows pending transaction acks."""
    first = subscription.cursor.ledger.ledgers.first_position
    for least in range(1, TRANSACTIONS + 1):
        groups = ((first.ledger_id, [first.entry_id + TRANSACTIONS - least]),)
        refused = subscription.transactions.hold(TxnId(0, least), Acknowledged(None, groups))
        assert refused is None, refused


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--entries", type=int, default=100_000)
    print(json.dumps(asyncio.run(measure(parser.parse_args().entries)), indent=2))
