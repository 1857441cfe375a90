"""The cases of `make bench-compare`: loads of pulsar-perf on one broker, and figures from its log.

Rates are the Java client's own statistics of each second, without the first seconds, in which its code is compiled, and
without the last one. `cpu_us` is processor time of the broker per message, over the whole run.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.brokers import Broker
from benchmarks.pulsar_standalone import perf_command

Figures = dict[str, float]
CPU, RATE, P99 = "cpu_us", "msg_s", "p99_ms"
SKIPPED_S = 3
"""Seconds at the start of a run that do not count."""
PACED_WARM_UP_S = 4
TIMEOUT_S = 90.0
_FAST = ("-r", "10000000")
_KIB = ("-s", "1024")
_SINGLE = ("-db", "-o", "1000")
_BATCHED = ("-o", "20000")
"""Without a limit of pending messages the client queues them, and counts them as published."""
_FOUR_SHARED = ("-st", "Shared", "-n", "4")
_FOUR_KEY_SHARED = ("-st", "Key_Shared", "-n", "4")
_KEYS = ("-mk", "random")
_RATE_LINE = re.compile(
    r"\[(\S+)\] (?:---|Prefetched messages: \d+ ---) "
    r"(?:.*?Ack received rate|Consume throughput received): ([\d.]+) (?:ack|msgs?)/s"
)
_SENT = re.compile(r"(\d+) records sent")
_RECEIVED_RATE = re.compile(r"records received\s+---\s+([\d.]+) msg/s")
_P99 = re.compile(r"Aggregated latency stats.*?99pct:\s*([\d.]+)")


class PerfFailed(Exception):
    """pulsar-perf did not report a result."""


@dataclass(frozen=True)
class Settings:
    seconds: int
    """Duration of the load of each case, at least 6."""
    backlog_messages: int


def steady_rate(log: str) -> float:
    """Return messages per second in the log, summed over the clients of the process. Raises PerfFailed."""
    by_client: dict[str, list[float]] = {}
    for client, rate in _RATE_LINE.findall(log):
        by_client.setdefault(client, []).append(float(rate))
    seconds = min(map(len, by_client.values()), default=0)
    sums = [sum(rates[second] for rates in by_client.values()) for second in range(seconds)]
    counted = [rate for rate in sums if rate > 0][SKIPPED_S:-1]
    if not counted:
        raise PerfFailed(f"the log has no rates of more than {SKIPPED_S + 1} seconds: {log[-200:]}")
    return statistics.mean(counted)


def number_in(log: str, pattern: re.Pattern[str]) -> float:
    found = pattern.search(log)
    if found is None:
        raise PerfFailed(f"the log has no match of {pattern.pattern!r}: {log[-200:]}")
    return float(found.group(1))


class _Perf:
    """One process of pulsar-perf."""

    def __init__(self, verb: str, broker: Broker, *options: object) -> None:
        self._output = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  (closed by `log`)
        self._process = subprocess.Popen(
            perf_command(verb, broker, *options),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            cwd=Path(tempfile.gettempdir()),
        )

    def log(self, timeout_s: float) -> str:
        """Wait for the end and return the output. Raises PerfFailed after `timeout_s`."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise PerfFailed(f"pulsar-perf did not end within {timeout_s:g} s") from error
        finally:
            self.end()
        with self._output as output:
            output.seek(0)
            return output.read()

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def _topic() -> str:
    return f"persistent://public/default/compare-{uuid.uuid4().hex[:12]}"


def _cpu_s(broker: Broker) -> float:
    cpu_s = broker.cpu_s()
    if cpu_s is None:
        raise PerfFailed("processor time needs /proc (Linux)")
    return cpu_s


def _publish(broker: Broker, seconds: int, *options: str) -> tuple[Figures, str]:
    before_s = _cpu_s(broker)
    log = _Perf("produce", broker, "-time", seconds, *options, _topic()).log(seconds + TIMEOUT_S)
    sent = number_in(log, _SENT)
    if not sent:
        raise PerfFailed(f"pulsar-perf has sent no message: {log[-200:]}")
    cpu_us = (_cpu_s(broker) - before_s) / sent * 1e6
    return {CPU: cpu_us, RATE: steady_rate(log), P99: number_in(log, _P99)}, log


def publish(broker: Broker, settings: Settings, *options: str) -> Figures:
    return _publish(broker, settings.seconds, *_FAST, *options)[0]


def paced(broker: Broker, settings: Settings) -> Figures:
    """Publish 1,000 messages a second. The rate is no result."""
    options = ("-r", "1000", *_KIB, *_SINGLE, "--warmup-time", str(PACED_WARM_UP_S))
    figures, _ = _publish(broker, settings.seconds + PACED_WARM_UP_S, *options)
    return {CPU: figures[CPU], P99: figures[P99]}


def end_to_end(broker: Broker, settings: Settings, produce: tuple[str, ...], consume: tuple[str, ...]) -> Figures:
    topic = _topic()
    consumer = _Perf("consume", broker, "-time", settings.seconds + 8, *consume, topic)
    try:
        time.sleep(SKIPPED_S)
        before_s = _cpu_s(broker)
        produced = _Perf("produce", broker, "-time", settings.seconds, *_FAST, *_KIB, *produce, topic)
        sent = number_in(produced.log(settings.seconds + TIMEOUT_S), _SENT)
        cpu_us = (_cpu_s(broker) - before_s) / sent * 1e6
        return {CPU: cpu_us, RATE: steady_rate(consumer.log(TIMEOUT_S))}
    finally:
        consumer.end()


def catch_up(broker: Broker, settings: Settings) -> Figures:
    topic, messages = _topic(), settings.backlog_messages
    subscription = ("-ss", "back", "-sp", "Earliest")
    timeout_s = TIMEOUT_S + messages / 5000
    _Perf("consume", broker, "-time", 3, *subscription, topic).log(TIMEOUT_S)  # creates the subscription
    _Perf("produce", broker, "-m", messages, *_FAST, *_KIB, *_BATCHED, topic).log(timeout_s)
    before_s = _cpu_s(broker)
    log = _Perf("consume", broker, "-m", messages, *subscription, "-q", "1000", topic).log(timeout_s)
    return {CPU: (_cpu_s(broker) - before_s) / messages * 1e6, RATE: number_in(log, _RECEIVED_RATE)}


Case = Callable[[Broker, Settings], Figures]
CASES: dict[str, Case] = {
    "publish_1k": lambda broker, settings: publish(broker, settings, *_KIB, *_SINGLE),
    "publish_1k_batched": lambda broker, settings: publish(broker, settings, *_KIB, *_BATCHED),
    "publish_100": lambda broker, settings: publish(broker, settings, "-s", "100", *_SINGLE),
    "publish_100_batched": lambda broker, settings: publish(broker, settings, "-s", "100", *_BATCHED),
    "exclusive": lambda broker, settings: end_to_end(broker, settings, _SINGLE, ("-st", "Exclusive")),
    "exclusive_batched": lambda broker, settings: end_to_end(broker, settings, ("-o", "1000"), ("-st", "Exclusive")),
    "shared": lambda broker, settings: end_to_end(broker, settings, _SINGLE, _FOUR_SHARED),
    "shared_batched": lambda broker, settings: end_to_end(broker, settings, ("-o", "1000"), _FOUR_SHARED),
    "key_shared": lambda broker, settings: end_to_end(broker, settings, (*_KEYS, *_SINGLE), _FOUR_KEY_SHARED),
    "key_shared_batched": lambda broker, settings: end_to_end(
        broker, settings, (*_KEYS, "-o", "1000"), _FOUR_KEY_SHARED
    ),
    "paced_1k": paced,
    "catch_up": catch_up,
}
LABELS = {
    "publish_1k": "publish 1 KiB",
    "publish_1k_batched": "publish 1 KiB in batches",
    "publish_100": "publish 100 B",
    "publish_100_batched": "publish 100 B in batches",
    "exclusive": "publish and consume 1 KiB, Exclusive",
    "exclusive_batched": "Exclusive in batches",
    "shared": "Shared, four consumers",
    "shared_batched": "Shared in batches",
    "key_shared": "Key_Shared, four consumers",
    "key_shared_batched": "Key_Shared in batches",
    "paced_1k": "publish 1,000 messages a second",
    "catch_up": "read a backlog of 1 million messages",
}
"""Names of the cases in the documentation."""
