"""Time slices (`pybroker/runtime/time_slices.py`) for code that generates long texts."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from pybroker.runtime.time_slices import SLICE_MS, in_slices

if TYPE_CHECKING:
    from pybroker.runtime.clock import Clock

SLICE_CHARACTERS = 256 * 1024
"""Limits the time to encode, compress and send a slice."""


def sliced(pieces: Iterator[str], clock: Clock) -> Iterator[str]:
    """Yield the texts of `pieces`, joined to one text per time slice. Some texts are empty. The caller yields to the
    event loop after each text.
    """
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

    def all_steps() -> Generator[None, None, None]:
        yield from steps

    await in_slices(all_steps(), clock)
