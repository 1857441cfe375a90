"""How the memory that a broker may use is divided: what the process needs, and the parts that grow with what clients do.

Pure. `docs/sizing.md` has the measurements behind these numbers.
"""

from __future__ import annotations

from typing import NamedTuple

from pybroker.memory.memory_budget import MemoryBudget, T

MIB = 1 << 20
PROCESS_BYTES = 80 * MIB
"""What a broker without clients takes: interpreter, libraries, threads."""
COUNTED_SHARE = 0.6
"""The rest is objects around the bytes, what the allocator holds back, buffers of the transport."""
GROUP_SHARE = 0.9
"""Of a control group's limit, at which the kernel ends the process."""
MACHINE_SHARE = 0.5
LEAST_BYTES = 24 * MIB
UNKNOWN_MACHINE_BYTES = 2048 * MIB
LEAST_WRITES_BYTES = 64 * MIB
"""Of entries that are in no segment file yet, before appends wait, where there is memory for that."""

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


class OwnBounds(NamedTuple):
    """What the parts' own keys say, in bytes; 0: nothing."""

    reads: int = 0
    publishes: int = 0
    cache: int = 0
    writes: int = 0
    requests: int = 0
    answers: int = 0
    views: int = 0


def process_limit_bytes(asked_bytes: int, found_bytes: int, *, is_of_group: bool) -> int:
    """What the process shall stay below: what was asked for, else a share of what was found (0: unknown)."""
    if asked_bytes > 0:
        return asked_bytes
    return int((found_bytes or UNKNOWN_MACHINE_BYTES) * (GROUP_SHARE if is_of_group else MACHINE_SHARE))


def counted_bytes(process_limit_bytes: int) -> int:
    """What of that is divided among the parts."""
    return max(LEAST_BYTES, int((process_limit_bytes - PROCESS_BYTES) * COUNTED_SHARE))


class WriteBuffers(NamedTuple):
    """How much may be in memory and in no segment file: at the first a checkpoint begins, at the second appends wait for it."""

    checkpoint_bytes: int
    all_bytes: int


def write_buffers(checkpoint_bytes: int, most_bytes: int) -> WriteBuffers:
    """For checkpoints of `checkpoint_bytes` where entries may take `most_bytes`: what comes while one is written is as much again.

    More would be no faster for long, as the disk has to take it all the same; what small checkpoints leave is no reason to wait.
    """
    checkpoint_bytes = min(checkpoint_bytes, most_bytes // 2)
    return WriteBuffers(checkpoint_bytes, min(most_bytes, max(2 * checkpoint_bytes, LEAST_WRITES_BYTES)))


def divided(limit_bytes: int, own: OwnBounds) -> MemoryBudget[T]:
    """Create a budget of `limit_bytes` with its parts. `own` bounds are upper bounds. The floors add up to 52/64 of the
    budget."""
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
    ):
        floor_bytes = limit_bytes * floor_64ths // 64
        budget.add_part(name, floor_bytes, limit_bytes * bound_64ths // 64).limit_to(own_bytes)
    return budget
