"""Until what a broker does by itself has happened: for what nobody is told, and no event is set."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], pause_s: float = 0, timeout_s: float = 60) -> None:
    """Let the loop turn until `condition()` holds. Raises TimeoutError.

    With `pause_s` between two looks, for what threads or other processes bring about; without, also on a loop whose time is moved.
    """
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(pause_s)
