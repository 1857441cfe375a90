"""CPU time of a process and its children, the figure that other load on the machine affects least."""

from __future__ import annotations

import os
import time
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds(root: int) -> float:
    """Return the user and system time of a process, of its descendants that run, and of those that it has waited for.

    The time of running processes has a resolution of nanoseconds, so intervals of a second can be compared.
    """
    children: dict[int, list[int]] = {}
    seconds: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            process = int(entry.name)
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                seconds[process] = time.clock_gettime(_clock_of(process))
            except OSError:
                continue  # The process has ended.
            children.setdefault(int(fields[1]), []).append(process)
            seconds[process] += sum(int(field) for field in fields[13:15]) / _TICKS
    total, waiting = 0.0, [root]
    while waiting:
        process = waiting.pop()
        total += seconds.get(process, 0.0)
        waiting += children.get(process, [])
    return total


def _clock_of(process: int) -> int:
    """Return the id of the CPU clock of a process, as clock_getcpuclockid(3) does on Linux."""
    return (~process << 3) | 2
