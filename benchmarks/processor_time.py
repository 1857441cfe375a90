"""CPU time of a process and its children, the figure that other load on the machine affects least."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds(root: int) -> float:
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue  # The process has ended.
            process = int(entry.name)
            children.setdefault(int(fields[1]), []).append(process)
            ticks[process] = sum(int(field) for field in fields[11:15])
    total, waiting = 0, [root]
    while waiting:
        process = waiting.pop()
        total += ticks.get(process, 0)
        waiting += children.get(process, [])
    return total / _TICKS
