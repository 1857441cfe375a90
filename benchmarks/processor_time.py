"""Processor time of a process and of all that it started: the part of a figure that other work on the machine disturbs least."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds(root: int) -> float:
    """Of the processes below `root` that live still, and of those that ended and were waited for."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue  # It has ended.
            process = int(entry.name)
            children.setdefault(int(fields[1]), []).append(process)
            ticks[process] = sum(int(field) for field in fields[11:15])
    total, waiting = 0, [root]
    while waiting:
        process = waiting.pop()
        total += ticks.get(process, 0)
        waiting += children.get(process, [])
    return total / _TICKS
