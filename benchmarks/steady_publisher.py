"""A publisher of a steady rate, run by `publish_beside_reads`: `python -m benchmarks.steady_publisher URL TOPIC RATE VALUE_BYTES`.

Each line on its input ends a window and names it; to each it answers with a line of JSON: messages, and milliseconds from when a
message was due, whether or not it could be sent then, to its receipt. So a broker that stands still for a while is seen in full.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import IO

import numpy as np

from benchmarks.frames import SendBlock, message_tail
from benchmarks.load import Link, Publisher

STEP_S = 0.001
"""Between two sends; what has become due meanwhile goes out together."""
WINDOW = 100_000


def main(url: str, topic: str, rate: int, value_bytes: int, commands: IO[str]) -> None:
    link = Link(url)
    name = link.open_producer(topic, 1)
    publisher = Publisher(link, SendBlock(1, message_tail(name, b"x" * value_bytes), 64), WINDOW)
    asked: list[str] = []
    threading.Thread(target=lambda: asked.extend(line.strip() for line in commands), daemon=True).start()
    start_s = time.perf_counter()
    latencies_s: list[float] = []
    done = 0
    while True:
        elapsed_s = time.perf_counter() - start_s
        publisher.limit_to(int(elapsed_s * rate))
        publisher.write()
        publisher.wait_and_read(STEP_S)
        now_s = time.perf_counter() - start_s
        latencies_s += [now_s - index / rate for index in range(done + 1, publisher.receipted_entries + 1)]
        done = publisher.receipted_entries
        if asked:
            _tell(asked.pop(0), latencies_s)
            latencies_s = []


def _tell(window: str, latencies_s: list[float]) -> None:
    latencies_ms = np.array(latencies_s or [0.0]) * 1000
    p50, p99, p999 = np.percentile(latencies_ms, [50, 99, 99.9]).tolist()
    shown = {
        "window": window,
        "messages": len(latencies_s),
        "p50_ms": p50,
        "p99_ms": p99,
        "p999_ms": p999,
        "max_ms": float(latencies_ms.max()),
    }
    print(json.dumps(shown), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.stdin)
