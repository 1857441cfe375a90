"""Worst inputs: what a megabyte of them costs the broker, at two sizes, and for how long they hold its event loop.

An *attack* is the worst input of one command or route that anybody may send. It is fired at two sizes; when a megabyte costs the
same at both, the work is linear in the bytes that were sent (`ratio` is 1), when it rises, it is not. The attacks themselves are in
`hostile_commands.py` and `hostile_http.py`.

Figures of an attack:

    small_kb, large_kb     bytes that were sent at one time
    cpu_s_mb, large_...    CPU seconds of the whole broker for a megabyte sent, at each size
    ratio                  of these two: 1 is linear
    held_ms                the most CPU that the loop's thread used between a PING of somebody else and its PONG
    late_ms                the longest that such a PONG took, other processes' share of the machine included
    peak_mb                how far memory rose above what it was before
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
"""Smaller attacks are fired as often as this takes: their cost would be lost among what the broker does anyway."""
MAX_FIRES = 50
PROBE_TIMEOUT_S = 120.0
MEGABYTE = 1_000_000

Fire = Callable[[], int]
"""Sends the input once, waits until it is answered or refused, and returns how many bytes it was. May be called again."""


@dataclass(frozen=True)
class Attack:
    """`ready` makes what the attack needs, an input of that many bytes among it, and cleans up when its context ends."""

    small_bytes: int
    large_bytes: int
    ready: Callable[[Broker, int], AbstractContextManager[Fire]]


def measure(attack: Attack, broker: Broker) -> Figures:
    """Fire the attack at both sizes."""
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
    """Kilobytes fired at one time, CPU seconds a megabyte, and by how many megabytes memory rose."""
    with attack.ready(broker, size_bytes) as fire:
        fire()  # The first one also pays for what is made once.
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
    """The most CPU that the loop used, and the most time that passed, between somebody's PING and its PONG: milliseconds."""
    with attack.ready(broker, attack.large_bytes) as fire, probing(broker) as probe:
        for _ in range(ROUNDS):
            fire()
    return probe.held_ms, probe.late_ms


class Probe:
    """An honest client beside the attack, on a thread of its own."""

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
        """What the broker's first thread, the loop's, has used so far: exact, and without what others take."""
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
    """CPU time of all threads of the process, in seconds: Linux has a clock for each process."""
    assert broker.pid is not None
    return time.clock_gettime((~broker.pid << 3) | 2)


def _reset_peak(broker: Broker) -> None:
    (PROC / f"{broker.pid}/clear_refs").write_text("5")


def _status_mb(broker: Broker, field: str) -> float:
    for line in (PROC / f"{broker.pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise AssertionError(field)
