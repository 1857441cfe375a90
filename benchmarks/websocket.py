"""Messages by WebSocket beside the same messages by the binary protocol, from publishing to acknowledgement.

  python -m benchmarks.websocket                      pybroker alone
  python -m benchmarks.websocket --reference DIR      and Pulsar's WebSocket service, started by DIR/baseline

One producer and one consumer, both in this process; each message is acknowledged. The binary protocol is used by
`pybroker.client`. CPU of the broker is in microseconds per message.
"""

import argparse
import asyncio
import base64
import json
import pathlib
import time
import uuid
from collections.abc import Awaitable, Callable
from functools import partial

from websockets.asyncio.client import connect as connect_websocket

from benchmarks.brokers import Broker, started_pybroker, started_reference
from pybroker.client import OutgoingMessage, connect

IN_FLIGHT = 500
ROUNDS = 3

Load = Callable[[Broker, str, int, bytes, bool], Awaitable[None]]


async def by_websocket(
    broker: Broker, topic: str, count: int, payload: bytes, is_batching: bool, compression: str | None = None
) -> None:
    assert broker.http_url is not None
    url = broker.http_url.replace("http", "ws", 1) + "/ws/v2"
    path = topic.replace("://", "/")
    batching = "?batchingEnabled=true&batchingMaxPublishDelay=5" if is_batching else ""
    async with (
        connect_websocket(f"{url}/consumer/{path}/s", compression=compression, ping_interval=None) as consumer,
        connect_websocket(f"{url}/producer/{path}{batching}", compression=compression, ping_interval=None) as producer,
    ):
        text = json.dumps({"payload": base64.b64encode(payload).decode()})
        free = asyncio.Semaphore(IN_FLIGHT)

        async def publish() -> None:
            for _ in range(count):
                await free.acquire()
                await producer.send(text)

        async def receipts() -> None:
            for _ in range(count):
                answer = json.loads(await producer.recv())
                assert answer["result"] == "ok", answer
                free.release()

        async with asyncio.TaskGroup() as group:
            group.create_task(publish())
            group.create_task(receipts())
            for _ in range(count):
                message = json.loads(await consumer.recv())
                await consumer.send(json.dumps({"messageId": message["messageId"]}))


async def by_binary_protocol(broker: Broker, topic: str, count: int, payload: bytes, is_batching: bool) -> None:
    async with connect(broker.service_url) as client:
        consumer = await client.consumer(topic, "s")
        producer = await client.producer(topic, batching=is_batching, batch_delay_s=0.005)
        free = asyncio.Semaphore(IN_FLIGHT)

        async def publish() -> None:
            for _ in range(count):
                await free.acquire()
                receipt = await producer.submit(OutgoingMessage(payload))
                receipt.add_done_callback(lambda _: free.release())

        async with asyncio.TaskGroup() as group:
            group.create_task(publish())
            for _ in range(count):
                await consumer.ack(await consumer.receive())


async def measure(broker: Broker, name: str, load: Load, count: int, size: int, is_batching: bool) -> None:
    """Print the median of the rates, and the CPU of the broker in the same round."""
    found = []
    for _ in range(ROUNDS):
        topic = f"persistent://public/default/{uuid.uuid4().hex[:8]}"
        before_s, started_s = broker.cpu_s() or 0, time.perf_counter()
        await load(broker, topic, count, b"x" * size, is_batching)
        took_s = time.perf_counter() - started_s
        found.append((count / took_s, ((broker.cpu_s() or 0) - before_s) / count * 1e6))
    rate, cpu_us = sorted(found)[ROUNDS // 2]
    batches = "batches" if is_batching else "single messages"
    print(
        f"{broker.name:<10} {name:<10} {batches:<16} {rate:>8,.0f} messages/s {cpu_us:>6.0f} us CPU of the broker",
        flush=True,
    )


async def compare(broker: Broker, count: int, size: int) -> None:
    for is_batching in (False, True):
        await measure(broker, "WebSocket", by_websocket, count, size, is_batching)
        await measure(broker, "compressed", partial(by_websocket, compression="deflate"), count, size, is_batching)
        await measure(broker, "binary", by_binary_protocol, count, size, is_batching)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a payload")
    parser.add_argument("--reference", type=pathlib.Path, metavar="DIR")
    options = parser.parse_args()
    settings = {"webSocketServiceEnabled": "true"}
    with started_pybroker(settings={**settings, "webSocketCompressionEnabled": "true"}) as broker:
        asyncio.run(compare(broker, options.messages, options.size))
    if options.reference is not None:
        with started_reference(options.reference, settings=settings) as broker:
            asyncio.run(compare(broker, options.messages, options.size))


if __name__ == "__main__":
    main()
