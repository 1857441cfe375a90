"""Long work on the event loop, as a generator that yields after each small step; other tasks run between time slices."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pybroker.runtime.clock import Clock

T = TypeVar("T")

SLICE_MS = 2.0
"""Time of one slice, without its last step."""


async def in_slices(steps: Generator[None, None, T], clock: Clock) -> T:
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
