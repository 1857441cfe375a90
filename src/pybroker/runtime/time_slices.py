"""Long work on the event loop, cut into slices: the loop turns to others in between.

What works is a generator that pauses after each small piece of work; the pieces of a slice are as many as fit into its time,
so that a slow machine turns to others as often as a fast one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pybroker.runtime.clock import Clock

T = TypeVar("T")

SLICE_MS = 2.0
"""How long the loop is held, but for the piece that is begun."""


async def in_slices(steps: Generator[None, None, T], clock: Clock) -> T:
    """All of it, and what it returns."""
    ends_ms = clock.monotonic_ms() + SLICE_MS
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result
        if clock.monotonic_ms() >= ends_ms:
            await asyncio.sleep(0)
            ends_ms = clock.monotonic_ms() + SLICE_MS
