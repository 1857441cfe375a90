"""Long work on the event loop, cut into slices: the loop turns to others in between.

What works is a generator that pauses after each small piece of work; the pieces of a slice are as many as fit into its time,
so that a slow machine turns to others as often as a fast one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pybroker.clock import Clock

SLICE_MS = 2.0
"""How long the loop is held, but for the piece that is begun."""
SLICE_CHARACTERS = 256 * 1024
"""What becomes of a slice, encoding, compressing and sending it, has to be as short."""


def sliced(pieces: Iterator[str], clock: Clock) -> Iterator[str]:
    """The texts of `pieces`, those of a slice as one; some are empty."""
    texts: list[str] = []
    size = 0
    ends_ms = clock.monotonic_ms() + SLICE_MS
    for piece in pieces:
        texts.append(piece)
        size += len(piece)
        if size >= SLICE_CHARACTERS or clock.monotonic_ms() >= ends_ms:
            yield "".join(texts)
            texts.clear()
            size = 0
            ends_ms = clock.monotonic_ms() + SLICE_MS
    yield "".join(texts)


async def exhaust(steps: Iterator[None], clock: Clock) -> None:
    """Have everything done that `steps` does."""
    ends_ms = clock.monotonic_ms() + SLICE_MS
    for _ in steps:
        if clock.monotonic_ms() >= ends_ms:
            await asyncio.sleep(0)
            ends_ms = clock.monotonic_ms() + SLICE_MS
