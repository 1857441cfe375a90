"""Division of the broker's memory: the fixed share of the process, and the parts that grow with client activity. Pure.

`docs/contributing/benchmarks.md` has the measurements from which these numbers were chosen.
"""

from __future__ import annotations

from typing import NamedTuple

from pybroker.memory.memory_budget import MemoryBudget, T

MIB = 1 << 20
PROCESS_BYTES = 80 * MIB
"""Memory of a broker without clients: interpreter, libraries, threads."""
COUNTED_SHARE = 0.6
"""Share of the remaining memory that the budget divides.

The rest is for objects around the bytes, memory retained by the allocator, and transport buffers.
"""
GROUP_SHARE = 0.9
"""Share of a control group's limit; above the limit the kernel kills the process."""
MACHINE_SHARE = 0.5
LEAST_BYTES = 24 * MIB
UNKNOWN_MACHINE_BYTES = 2048 * MIB
LEAST_WRITES_BYTES = 64 * MIB
"""Entries that are in no segment file may use at least this much before appends wait, if the machine has it."""

READS = "reads"
OUTBOXES = "outboxes"
PUBLISHES = "publishes"
FRAMES = "frames"
WRITES = "writes"
CACHE = "cache"
REQUESTS = "requests"
ANSWERS = "answers"
VIEWS = "views"
DOCUMENTS = "documents"
LISTS = "lists"
COMPACTION = "compaction"
LOOK_AHEAD = "look_ahead"
DELAYED = "delayed"
WEBSOCKETS = "websockets"


class OwnBounds(NamedTuple):
    """Limits of parts by their configuration keys, in bytes; 0 means not set."""

    reads: int = 0
    publishes: int = 0
    cache: int = 0
    writes: int = 0
    requests: int = 0
    answers: int = 0
    views: int = 0


def process_limit_bytes(asked_bytes: int, found_bytes: int, *, is_of_group: bool) -> int:
    """Return the configured limit `asked_bytes`; if it is 0, a share of the detected limit `found_bytes`. If that is 0
    (unknown), `UNKNOWN_MACHINE_BYTES` replaces it.

    The share is `GROUP_SHARE` if the detected limit is of a control group (`is_of_group`), else `MACHINE_SHARE`.
    """
    if asked_bytes > 0:
        return asked_bytes
    return int((found_bytes or UNKNOWN_MACHINE_BYTES) * (GROUP_SHARE if is_of_group else MACHINE_SHARE))


def counted_bytes(process_limit_bytes: int) -> int:
    return max(LEAST_BYTES, int((process_limit_bytes - PROCESS_BYTES) * COUNTED_SHARE))


class WriteBuffers(NamedTuple):
    """Memory limits in bytes for entries that are not in a segment file yet: at `checkpoint_bytes` a checkpoint begins,
    at `all_bytes` appends wait.
    """

    checkpoint_bytes: int
    all_bytes: int


def write_buffers(checkpoint_bytes: int, most_bytes: int) -> WriteBuffers:
    """Return the memory limits for entries that are not in a segment file yet. `most_bytes`: the memory that these
    entries may use. `checkpoint_bytes`: the preferred size at which a checkpoint begins; while it runs, appends may use
    as much again.
    """
    checkpoint_bytes = min(checkpoint_bytes, most_bytes // 2)
    return WriteBuffers(checkpoint_bytes, min(most_bytes, max(2 * checkpoint_bytes, LEAST_WRITES_BYTES)))


def divided(limit_bytes: int, own: OwnBounds) -> MemoryBudget[T]:
    """Divide `limit_bytes` of memory into the parts of the budget. `own`: upper bounds from the configuration."""
    budget: MemoryBudget[T] = MemoryBudget(limit_bytes)
    for name, floor_64ths, bound_64ths, own_bytes in (
        (READS, 8, 32, own.reads),
        (OUTBOXES, 8, 32, 0),
        (PUBLISHES, 4, 16, own.publishes),
        (FRAMES, 1, 8, 0),
        (WRITES, 24, 24, own.writes),
        (CACHE, 0, 8, own.cache),
        (REQUESTS, 1, 8, own.requests),
        (ANSWERS, 1, 8, own.answers),
        (VIEWS, 1, 8, own.views),
        (DOCUMENTS, 1, 8, 0),
        (LISTS, 1, 8, 0),
        (COMPACTION, 1, 16, 0),
        (LOOK_AHEAD, 1, 4, 0),
        (DELAYED, 0, 4, 0),
        (WEBSOCKETS, 0, 8, 0),
    ):
        floor_bytes = limit_bytes * floor_64ths // 64
        budget.add_part(name, floor_bytes, limit_bytes * bound_64ths // 64).limit_to(own_bytes)
    return budget
