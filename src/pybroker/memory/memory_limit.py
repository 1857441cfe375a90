"""Memory limit of this process: the limit of its control group, else the machine's memory.

Versions 1 and 2 of control groups are read, from the process's own group up to the root; the smallest limit counts.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

_ROOT = Path("/")
_NO_LIMIT_BYTES = 1 << 60
"""Version 1 reports "no limit" as about 2^63."""


class MemoryLimit(NamedTuple):
    """The memory limit in bytes (0 if unknown). `is_of_group`: it is the limit of a control group, not the machine's
    memory.
    """

    size_bytes: int
    is_of_group: bool


def memory_limit(root: Path = _ROOT) -> MemoryLimit:
    """Return the memory limit of this process. `root` is the root of the file system."""
    machine_bytes = _machine_bytes(root)
    limits = [*_group_limits_bytes(root)]
    smallest_bytes = min(limits, default=0)
    if smallest_bytes and (not machine_bytes or smallest_bytes < machine_bytes):
        return MemoryLimit(smallest_bytes, is_of_group=True)
    return MemoryLimit(machine_bytes, is_of_group=False)


def _machine_bytes(root: Path) -> int:
    for line in _text(root / "proc/meminfo").splitlines():
        name, _, amount = line.partition(":")
        if name == "MemTotal":
            return int(amount.split()[0]) * 1024
    return 0


def _group_limits_bytes(root: Path) -> list[int]:
    groups = root / "sys/fs/cgroup"
    found: list[int] = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:  # version 2; version 1 may be mounted beside it
            for mounted in (groups, groups / "unified"):
                found += _limits_up_from(mounted, path, "memory.max")
        elif "memory" in controllers.split(","):
            found += _limits_up_from(groups / "memory", path, "memory.limit_in_bytes")
    return found


def _limits_up_from(mounted: Path, path: str, name: str) -> list[int]:
    parts = [part for part in path.split("/") if part and part != ".."]
    directories = [mounted.joinpath(*parts[:count]) for count in range(len(parts) + 1)]
    texts = [_text(directory / name).strip() for directory in directories]
    return [int(text) for text in texts if text.isdigit() and 0 < int(text) < _NO_LIMIT_BYTES]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
