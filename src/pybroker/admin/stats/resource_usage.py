"""Resource usage of the machine, for load reports and the `pulsar_lb_...` metrics.

Measured once per rate window from files in /proc and /sys; without these files, all figures are 0.

`cpu`: busy share of the machine in percent, 100 per core. `memory`: resident memory of the process, relative to the
machine or control group, in MB. `direct memory`: cached entries and unstored messages, relative to their limits, in MB.
`bandwidth`: all network interfaces except loopback, in kbit/s.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pybroker.memory.memory_limit import memory_limit

if TYPE_CHECKING:
    from pybroker.broker.service import BrokerService

UNKNOWN_LIMIT = -1.0
MIN_CPU_TICKS = 100
"""Shortest measured window: one second of one core. A broker that has just started may have a shorter first window."""
_MIB = 1024 * 1024
_PROC = Path("/proc")
_NETWORKS = Path("/sys/class/net")


class Usage(NamedTuple):
    """Usage and limit of one resource, in the units above. An unknown limit is UNKNOWN_LIMIT."""

    usage: float = 0.0
    limit: float = UNKNOWN_LIMIT

    @property
    def percent(self) -> float:
        return 100 * self.usage / self.limit if self.limit > 0 else 0.0


class ResourceMeter:
    """Usage at the last sample."""

    def __init__(self, broker: BrokerService) -> None:
        self._broker = broker
        self._cpu_ticks = _cpu_ticks()
        self._network_bytes = _network_bytes()
        self._sampled_ms: float | None = None
        self.sampled_wall_ms = 0
        self.cpu = _recent_cpu()
        self.memory = Usage()
        self.direct_memory = Usage()
        self.bandwidth_in = Usage()
        self.bandwidth_out = Usage()

    def sample(self, wall_ms: int, monotonic_ms: float) -> None:
        busy, total = _cpu_ticks()
        busy_before, total_before = self._cpu_ticks
        if total - total_before >= MIN_CPU_TICKS:
            self.cpu = Usage(self.cpu.limit * (busy - busy_before) / (total - total_before), self.cpu.limit)
            self._cpu_ticks = busy, total
        self.memory = Usage(_resident_bytes() / _MIB, memory_limit().size_bytes / _MIB)
        self.direct_memory = self._message_memory()
        received, sent = _network_bytes()
        if self._sampled_ms is not None and monotonic_ms > self._sampled_ms:
            elapsed_ms = monotonic_ms - self._sampled_ms
            limit = _network_limit_kbit_per_s()
            # Bits per millisecond are kilobits per second.
            self.bandwidth_in = Usage(8 * (received - self._network_bytes[0]) / elapsed_ms, limit)
            self.bandwidth_out = Usage(8 * (sent - self._network_bytes[1]) / elapsed_ms, limit)
        self._network_bytes = received, sent
        self._sampled_ms = monotonic_ms
        self.sampled_wall_ms = wall_ms

    def _message_memory(self) -> Usage:
        broker = self._broker
        limit_mb = broker.ledgers.cache.limit_bytes / _MIB + broker.runtime.config.max_message_publish_buffer_size_in_mb
        return Usage((broker.ledgers.cache.size_bytes + broker.runtime.memory.publishes.used_bytes) / _MIB, limit_mb)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def _recent_cpu() -> Usage:
    cores = os.cpu_count() or 1
    running = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return Usage(100.0 * min(running, cores), 100.0 * cores)


def _cpu_ticks() -> tuple[int, int]:
    fields = _text(_PROC / "stat").partition("\n")[0].split()[1:9]
    ticks = [int(each) for each in fields]
    if len(ticks) < 5:
        return 0, 0
    idle = ticks[3] + ticks[4]  # idle, and idle during IO
    return sum(ticks) - idle, sum(ticks)


def process_cpu_ms() -> float:
    used = os.times()
    return (used.user + used.system) * 1000


def _resident_bytes() -> int:
    fields = _text(_PROC / "self/statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else 0


def _network_bytes() -> tuple[int, int]:
    received = sent = 0
    for line in _text(_PROC / "net/dev").splitlines()[2:]:
        name, _, figures = line.partition(":")
        fields = figures.split()
        if name.strip() != "lo" and len(fields) > 8:
            received += int(fields[0])
            sent += int(fields[8])
    return received, sent


def _network_limit_kbit_per_s() -> float:
    try:
        speeds = [_text(interface / "speed").strip() for interface in _NETWORKS.iterdir()]
    except OSError:
        return UNKNOWN_LIMIT
    return sum(int(speed) * 1000.0 for speed in speeds if speed.isdigit()) or UNKNOWN_LIMIT
