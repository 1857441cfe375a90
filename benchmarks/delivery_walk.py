"""Cost of a message in the broker from publish to acknowledgement, in memory, without sockets and disks.

    python -m benchmarks.delivery_walk          one JSON object: CPU microseconds per publish and per acknowledgement

To compare two source trees, alternate runs with `PYTHONPATH=TREE/src`.
"""

import asyncio
import json
import time

from tests.support.memory_broker import memory_broker
from tests.support.recording_peer import RecordingPeer

from pybroker.model.events import Ack, SendRun
from pybroker.wire.entry_builder import build_entry

KINDS = ("Exclusive", "Shared", "Key_Shared")
SIZES = ((1, 3000), (50, 300))
"""Entries per run, and number of runs. A tenth of them is warm-up."""
ENTRY = build_entry("p", 0, 1, b"x" * 100, key="k")


def run_of(entries: int) -> SendRun:
    run = SendRun(1)
    run.sequence_ids += range(entries)
    run.highest_sequence_ids += [0] * entries
    run.message_counts += [1] * entries
    run.payloads += [ENTRY] * entries
    run.size_bytes = entries * len(ENTRY)
    return run


async def measure() -> dict[str, float]:
    found: dict[str, float] = {}
    async with memory_broker() as broker:
        for kind in KINDS:
            topic, peer, sender = (
                await broker.topic(f"persistent://public/default/{kind}"),
                RecordingPeer(),
                RecordingPeer(),
            )
            consumer = await broker.consumer(topic, "s", peer, kind)
            consumer.flow(1 << 30)
            producer = broker.producer(topic, sender)
            for entries, runs in SIZES:
                delivery_ns = ack_ns = 0
                for index in range(runs):
                    run = run_of(entries)
                    began_ns = time.process_time_ns()
                    topic.publish(producer, run)
                    while producer.pending or len(peer.delivered) < entries:  # noqa: ASYNC110
                        await asyncio.sleep(0)
                    delivered_ns = time.process_time_ns()
                    ack = Ack(1)
                    ack.groups = [(peer.delivered[0].ledger_id, [each.entry_id for each in peer.delivered])]
                    consumer.subscription.acknowledge(consumer, ack)
                    acked_ns = time.process_time_ns()
                    if index >= runs // 10:
                        delivery_ns += delivered_ns - began_ns
                        ack_ns += acked_ns - delivered_ns
                    peer.delivered.clear()
                    sender.receipts.clear()
                counted = (runs - runs // 10) * 1000
                found[f"{kind}, {entries}: publish and deliver"] = round(delivery_ns / counted, 2)
                found[f"{kind}, {entries}: acknowledge"] = round(ack_ns / counted, 2)
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure())))
