"""Cost of the worst inputs: CPU per megabyte at two sizes, and how long they block the event loop.

An *attack* is the worst input of a command or route that any client may send (`hostile_commands.py`,
`hostile_http.py`). It is sent at two sizes: if the cost per megabyte is equal, the work is linear in the input.

    small_kb, large_kb     bytes that were sent at one time
    cpu_s_mb, large_...    CPU seconds of the broker per megabyte sent, at each size
    ratio                  of these two: 1 is linear
    held_ms                maximum CPU time of the loop's thread between another client's PING and its PONG
    late_ms                maximum latency of such a PONG, including delays by other processes
    peak_mb                maximum increase of memory
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from benchmarks import load
from benchmarks.brokers import PROC, Broker
from benchmarks.cases import Figures

ROUNDS = 3
PROBE_INTERVAL_S = 0.001
MIN_FIRED_BYTES = 64 * 1024
"""Smaller attacks are repeated up to this size, because their cost would be lost in the broker's other work."""
MAX_FIRES = 50
PROBE_TIMEOUT_S = 120.0
MEGABYTE = 1_000_000

Fire = Callable[[], int]
"""Sends the input once, waits for the response or refusal, and returns the number of bytes. Can be called again."""


@dataclass(frozen=True)
class Attack:
    """One attack. `ready` prepares an input of the given size, and cleans up when its context ends."""

    small_bytes: int
    large_bytes: int
    ready: Callable[[Broker, int], AbstractContextManager[Fire]]


def measure(attack: Attack, broker: Broker) -> Figures:
    small_kb, small_s, _ = _cost(attack, broker, attack.small_bytes)
    large_kb, large_s, peak_mb = _cost(attack, broker, attack.large_bytes)
    held_ms, late_ms = _held(attack, broker)
    return {
        "small_kb": small_kb,
        "large_kb": large_kb,
        "cpu_s_mb": small_s,
        "large_cpu_s_mb": large_s,
        "ratio": large_s / small_s if small_s else None,
        "held_ms": held_ms,
        "late_ms": late_ms,
        "peak_mb": peak_mb,
    }


def _cost(attack: Attack, broker: Broker, size_bytes: int) -> tuple[float, float, float]:
    with attack.ready(broker, size_bytes) as fire:
        fire()  # The first shot includes one-time work.
        _reset_peak(broker)
        before_mb = _status_mb(broker, "VmRSS")
        fires = min(MAX_FIRES, max(ROUNDS, MIN_FIRED_BYTES // max(1, size_bytes)))
        started_s, sent_bytes = _process_cpu_s(broker), 0
        for _ in range(fires):
            sent_bytes += fire()
        used_s = _process_cpu_s(broker) - started_s
        peak_mb = _status_mb(broker, "VmHWM") - before_mb
    return sent_bytes / fires / 1000, used_s / sent_bytes * MEGABYTE, max(0.0, peak_mb)


def _held(attack: Attack, broker: Broker) -> tuple[float, float]:
    """Return the maximum CPU time of the event loop, and the maximum time, from another client's PING to its PONG, in
    ms.
    """
    with attack.ready(broker, attack.large_bytes) as fire, probing(broker) as probe:
        for _ in range(ROUNDS):
            fire()
    return probe.held_ms, probe.late_ms


class Probe:
    """A well-behaved client beside the attack, in its own thread."""

    def __init__(self, broker: Broker) -> None:
        assert broker.pid is not None
        self._loop_clock = PROC / f"{broker.pid}/task/{broker.pid}/schedstat"
        self._link = load.Link(broker.service_url)
        self._link.socket.settimeout(PROBE_TIMEOUT_S)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.held_ms = 0.0
        self.late_ms = 0.0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._link.close()

    def _run(self) -> None:
        while not self._is_over.wait(PROBE_INTERVAL_S):
            cpu_ns, sent_s = self._loop_cpu_ns(), time.monotonic()
            self._link.ping()
            self.late_ms = max(self.late_ms, (time.monotonic() - sent_s) * 1000)
            self.held_ms = max(self.held_ms, (self._loop_cpu_ns() - cpu_ns) / 1e6)

    def _loop_cpu_ns(self) -> int:
        return int(self._loop_clock.read_text().split()[0])


@contextmanager
def probing(broker: Broker) -> Iterator[Probe]:
    probe = Probe(broker)
    probe.start()
    try:
        yield probe
    finally:
        probe.stop()


def _process_cpu_s(broker: Broker) -> float:
    assert broker.pid is not None
    return time.clock_gettime((~broker.pid << 3) | 2)


def _reset_peak(broker: Broker) -> None:
    (PROC / f"{broker.pid}/clear_refs").write_text("5")


def _status_mb(broker: Broker, field: str) -> float:
    for line in (PROC / f"{broker.pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise AssertionError(field)
