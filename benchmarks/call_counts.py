"""Python calls in the broker's event loop for one message, one message of many, and one GET of topic stats.

    python -m benchmarks.call_counts               prints the counts beside the stored ones
    python -m benchmarks.call_counts --functions   also prints the functions that are called, by count
    python -m benchmarks.call_counts --tree        also prints the calls of one message in their order

The broker runs in this process with a local store in a temporary directory and real sockets; a thread is the client.
Calls of the standard library do not count, except creations of named tuples. Counts depend on the interpreter, not on
the machine's speed.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType

from benchmarks.frames import MESSAGE, SEND_RECEIPT, FrameWalker, SendBlock, encode_command, encode_flow, message_tail
from pybroker import broker_process
from pybroker.config import load
from pybroker.runtime.runtime import Runtime
from pybroker.wire import core
from pybroker.wire import pulsar_api_pb2 as pb

TOPIC = "public/default/call-counts"
MESSAGES_PER_RUN = 100
REPEATS = 5
STORED = {"one message": (149, 137), "one of 100 messages": (4.2, 2.0), "GET of topic stats": (700, 700)}
"""Calls at the last count (Python 3.11), without and with the compiled core; the smallest number of REPEATS."""


Calls = list[tuple[int, CodeType]]
"""Calls in their order, each with its depth."""


class CallRecorder:
    """Records Python calls of the thread that starts it."""

    def __init__(self) -> None:
        self._calls: Calls = []
        self._depth = 0

    def start(self) -> None:
        self._calls, self._depth = [], 0
        sys.setprofile(self._called)

    def stop(self) -> Calls:
        sys.setprofile(None)
        return self._calls

    def _called(self, frame: FrameType, event: str, _argument: object) -> None:
        if not _is_counted(frame.f_code.co_filename):
            return
        if event == "call":
            self._calls.append((self._depth, frame.f_code))
            self._depth += 1
        elif event == "return":
            self._depth -= 1


def _is_counted(file_name: str) -> bool:
    """Return whether the file is the broker's or a library's: asyncio and threads are also used by the benchmark."""
    return "/pybroker/" in file_name or "site-packages" in file_name or file_name == "<string>"  # named tuples


class BlockingClient:
    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._walker = FrameWalker()
        self._types: Counter[int] = Counter()
        connect = pb.CommandConnect(client_version="counts")
        self._ask(pb.BaseCommand(type=pb.BaseCommand.CONNECT, connect=connect), pb.BaseCommand.CONNECTED)
        producer = pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1, producer_name="p")
        self._ask(pb.BaseCommand(type=pb.BaseCommand.PRODUCER, producer=producer), pb.BaseCommand.PRODUCER_SUCCESS)
        subscribe = pb.CommandSubscribe(topic=TOPIC, subscription="s", consumer_id=1, request_id=2)
        subscribe.subType = pb.CommandSubscribe.Shared
        self._ask(pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE, subscribe=subscribe), pb.BaseCommand.SUCCESS)
        self._socket.sendall(encode_flow(1, 1_000_000))
        self._tail = message_tail("p", bytes(100))

    def publish(self, count: int) -> None:
        """Publish `count` messages with one write, and wait for their receipts and for their delivery."""
        self._types.clear()
        self._socket.sendall(SendBlock(1, self._tail, count).buffer)
        while self._types[SEND_RECEIPT] < count or self._types[MESSAGE] < count:
            self._receive()

    def close(self) -> None:
        self._socket.close()

    def _ask(self, command: pb.BaseCommand, answer: int) -> None:
        self._socket.sendall(encode_command(command))
        while not self._types[answer]:
            self._receive()

    def _receive(self) -> None:
        received = self._socket.recv_into(self._walker.space())
        assert received, "the broker closed the connection"
        found = self._walker.frames(received)
        for kind, _, end in found:
            self._types[kind] += 1
            last = end
        if found:
            self._walker.consumed(last)


async def recorded(recorder: CallRecorder, action: Callable[[], None]) -> Calls:
    """Run `action` REPEATS times, and return the calls of the repetition with the fewest calls, because timers of the
    broker run in some repetitions.
    """
    await asyncio.to_thread(action)
    found: list[Calls] = []
    for _ in range(REPEATS):
        await asyncio.sleep(0.2)  # until the work that follows the previous repeat is done
        recorder.start()
        await asyncio.to_thread(action)
        found.append(recorder.stop())
    return min(found, key=len)


async def measure(directory: str) -> dict[str, Calls]:
    settings = {"dataDirectory": directory, "brokerServicePort": "0", "webServicePort": "0"}
    broker = broker_process.Broker(Runtime(load(None, {}, settings).config), broker_process.OwnProcess())
    await broker.start()
    recorder = CallRecorder()
    addresses = broker.service.presence.addresses.resolve(None)
    client = await asyncio.to_thread(BlockingClient, int(addresses.broker_url.rpartition(":")[2]))
    url = f"{addresses.http_url}/admin/v2/persistent/{TOPIC}/stats"
    try:
        return {
            "one message": await recorded(recorder, lambda: client.publish(1)),
            f"one of {MESSAGES_PER_RUN} messages": await recorded(recorder, lambda: client.publish(MESSAGES_PER_RUN)),
            "GET of topic stats": await recorded(recorder, lambda: urllib.request.urlopen(url).close()),
        }
    finally:
        client.close()
        await broker.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--functions", action="store_true", help="print the functions that are called")
    parser.add_argument("--tree", action="store_true", help="print the calls of one message in their order")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as directory,
        asyncio.Runner(loop_factory=broker_process.loop_factory()) as runner,
    ):
        found = runner.run(measure(directory))
    for name, calls in found.items():
        messages = MESSAGES_PER_RUN if "of 100" in name else 1
        files = len({code.co_filename for _, code in calls})
        stored = STORED[name][0 if core.COMPILED is None else 1]
        print(f"{name:<22} {len(calls) / messages:8.1f} calls in {files} files; stored: {stored}")
        if arguments.functions:
            for code, count in Counter(code for _, code in calls).most_common():
                print(f"    {count:5} {_shown(code)}")
        if arguments.tree and name == "one message":
            for depth, code in calls:
                print(f"    {'  ' * depth}{_shown(code)}")


def _shown(code: CodeType) -> str:
    return f"{code.co_filename.rpartition('pybroker/')[2]} {code.co_qualname}"


if __name__ == "__main__":
    main()
