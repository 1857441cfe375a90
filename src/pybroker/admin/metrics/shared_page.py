"""Metrics page that all requests within metricsPageIntervalMs share: written, compressed and stored once."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from pybroker.memory.broker_memory import Holding
from pybroker.runtime import logs

if TYPE_CHECKING:
    from pybroker.admin.metrics.metrics_page import MetricsPage
    from pybroker.runtime.runtime import Runtime
    from pybroker.runtime.tasks import TaskOwner

PART_BYTES = 16 * 1024
"""Minimum compressed size of a part, except for the last. Smaller parts need more event loop iterations."""
PLAIN_PART_BYTES = 64 * 1024
GZIP_WINDOW_BITS = 31
FASTEST = 1  # compression level; higher levels gain little


class PageNotWritten(Exception):
    """Writing the page failed, so it will never be complete."""


class WrittenPage:
    """A page that is being written, or is complete. Clients can read it while it is being written."""

    def __init__(self, room: Holding) -> None:
        """`room` is the memory reservation of the page, released when the page is neither current nor being sent."""
        self.is_whole = False
        self.has_failed = False
        self._parts: list[bytes] = []
        self._grown = asyncio.Event()
        self._room = room
        self._users = 1  # the current page's owner and clients

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self._parts))

    @property
    def has_ended(self) -> bool:
        return self.is_whole or self.has_failed

    def add(self, part: bytes) -> None:
        self._parts.append(part)
        self._room.count(self.size_bytes)
        self._tell()

    @contextmanager
    def read(self) -> Iterator[None]:
        """Keep the memory of the page reserved within this context, in which the caller reads the page."""
        self._users += 1
        try:
            yield
        finally:
            self.let_go()

    def let_go(self) -> None:
        self._users -= 1
        if not self._users:
            self._room.close()

    def end(self, *, is_whole: bool) -> None:
        self.is_whole, self.has_failed = is_whole, not is_whole
        self._tell()

    def _tell(self) -> None:
        self._grown.set()
        self._grown = asyncio.Event()

    async def compressed(self) -> AsyncIterator[bytes]:
        """Yield the parts of the page, compressed with gzip, as they are written. Raises PageNotWritten if writing
        fails.
        """
        index = 0
        while True:
            while index < len(self._parts):
                yield self._parts[index]
                index += 1
            if self.has_failed:
                raise PageNotWritten
            if self.is_whole:
                return
            await self._grown.wait()

    async def plain(self) -> AsyncIterator[bytes]:
        opener = zlib.decompressobj(GZIP_WINDOW_BITS)
        async for part in self.compressed():
            waiting = part
            while waiting:
                yield opener.decompress(waiting, PLAIN_PART_BYTES)
                waiting = opener.unconsumed_tail
                await asyncio.sleep(0)
        if rest := opener.flush():
            yield rest


class SharedPage:
    """Owner of the current page."""

    def __init__(self, page: MetricsPage, tasks: TaskOwner, runtime: Runtime) -> None:
        self._page = page
        self._tasks = tasks
        self._runtime = runtime
        self._interval_s = runtime.config.metrics_page_interval_ms / 1000
        self._deadline_s = runtime.config.metrics_servlet_timeout_ms / 1000
        self._current: WrittenPage | None = None
        self._fresh_until_s = 0.0

    @property
    def kept(self) -> WrittenPage | None:
        return self._current

    def current(self) -> WrittenPage:
        """Return the current page. If there is none, or it has failed, or it is complete and older than
        metricsPageIntervalMs, start to write a new page and return the new page.
        """
        now_s, memory = self._now_s(), self._runtime.memory
        current = self._current
        if current is None or current.has_failed or (current.is_whole and now_s >= self._fresh_until_s):
            if current is not None:
                current.let_go()
            current = self._current = WrittenPage(Holding(memory, memory.answers))
            self._fresh_until_s = now_s + self._interval_s
            self._tasks.start(self._write(current), "metrics page")
        return current

    async def _write(self, written: WrittenPage) -> None:
        try:
            async with asyncio.timeout(self._deadline_s):
                await self._write_pieces(written, self._page.slices())
            written.end(is_whole=True)
        except TimeoutError:
            logs.warning("metrics.timed_out", deadline_s=self._deadline_s)
        finally:
            if not written.is_whole:
                written.end(is_whole=False)
            self._runtime.call_later(self._fresh_until_s - self._now_s(), partial(self._forget, written))

    async def _write_pieces(self, written: WrittenPage, pieces: Iterator[str]) -> None:
        compressor = zlib.compressobj(FASTEST, zlib.DEFLATED, GZIP_WINDOW_BITS)
        held = bytearray()
        for piece in pieces:
            held += compressor.compress(piece.encode())
            if len(held) >= PART_BYTES:
                written.add(bytes(held))
                held.clear()
            await asyncio.sleep(0)
        held += compressor.flush()
        written.add(bytes(held))

    def _now_s(self) -> float:
        return self._runtime.clock.monotonic_ms() / 1000

    def _forget(self, written: WrittenPage) -> None:
        if self._current is written:
            self._current = None
            written.let_go()
