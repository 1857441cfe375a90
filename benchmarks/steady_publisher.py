"""Publishers with a steady rate: `python -m benchmarks.steady_publisher URL TOPIC RATE VALUE_BYTES [PUBLISHERS]`.

Run by `publish_beside_reads` and `fairness`. Several publishers use a connection and a topic each (`TOPIC-0`, ...) and
share `RATE`.

Each line on stdin ends a window and names it. The response is a line of JSON: messages, messages a second, and
milliseconds from each message's due time to its receipt. With the rate 0, the publishers send as fast as their windows
allow, and only the rate counts.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import threading
import time
from typing import IO, Any

import numpy as np

from benchmarks.frames import SendBlock, message_tail
from benchmarks.load import Link, Publisher

STEADY = "/steady"
"""In the names of the topics."""
STEP_S = 0.001
"""Time between sends. All messages that are due are sent together."""
WINDOW = 100_000
FULL_SPEED_WINDOW = 250


class SteadyPublisher:
    def __init__(self, url: str, topic: str, rate: int, value_bytes: int, publishers: int = 1) -> None:
        arguments = [url, topic, str(rate), str(value_bytes), str(publishers)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.steady_publisher", *arguments],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def end_window(self, name: str) -> dict[str, Any]:
        """Return the figures since the end of the last window."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(name + "\n")
        self._process.stdin.flush()
        shown: dict[str, Any] = json.loads(self._process.stdout.readline())
        assert shown["window"] == name
        return shown

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def main(url: str, topic: str, rate: int, value_bytes: int, count: int, commands: IO[str]) -> None:
    window = WINDOW if rate else FULL_SPEED_WINDOW
    topics = [topic] if count == 1 else [f"{topic}-{number}" for number in range(count)]
    publishers = [_open(url, name, value_bytes, window) for name in topics]
    sockets = {publisher.link.socket: publisher for publisher in publishers}
    asked: list[str] = []
    threading.Thread(target=lambda: asked.extend(line.strip() for line in commands), daemon=True).start()
    start_s = time.perf_counter()
    latencies_s: list[float] = []
    done = dict.fromkeys(publishers, 0)
    began_s = start_s
    while True:
        elapsed_s = time.perf_counter() - start_s
        for number, publisher in enumerate(publishers):
            # The publishers alternate: message i of all is due i intervals after the start.
            if rate:
                publisher.limit_to((int(elapsed_s * rate) + count - 1 - number) // count)
            publisher.write()
        for ready in select.select(list(sockets), [], [], STEP_S)[0]:
            sockets[ready].read()
        now_s = time.perf_counter() - start_s
        for number, publisher in enumerate(publishers):
            first, end = done[publisher], publisher.receipted_entries
            if rate:
                latencies_s += [now_s - (index * count + number + 1) / rate for index in range(first, end)]
            else:
                latencies_s += [0.0] * (end - first)
            done[publisher] = end
        if asked:
            now_s = time.perf_counter()
            _tell(asked.pop(0), latencies_s, now_s - began_s)
            latencies_s, began_s = [], now_s


def _open(url: str, topic: str, value_bytes: int, window: int) -> Publisher:
    link = Link(url)
    name = link.open_producer(topic, 1)
    return Publisher(link, SendBlock(1, message_tail(name, b"x" * value_bytes), 64), window)


def _tell(window: str, latencies_s: list[float], took_s: float) -> None:
    latencies_ms = np.array(latencies_s or [0.0]) * 1000
    p50, p99, p999 = np.percentile(latencies_ms, [50, 99, 99.9]).tolist()
    shown = {
        "window": window,
        "messages": len(latencies_s),
        "rate": len(latencies_s) / took_s,
        "p50_ms": p50,
        "p99_ms": p99,
        "p999_ms": p999,
        "max_ms": float(latencies_ms.max()),
    }
    print(json.dumps(shown), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]), sys.stdin)
