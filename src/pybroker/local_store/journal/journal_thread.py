"""The journal with a writer thread: one durable write and one callback to the event loop for all waiting items.

Operation: the event loop puts items into a queue. The idle writer takes all items up to `max_batch_bytes`, writes them
as one batch, and returns the batch by one `call_soon_threadsafe`.

Concurrency: `put`, `forget_fenced`, and `close` run on the event loop; methods marked "Writer" on the writer thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeVar

from pybroker.local_store.journal.journal import BlockingSteps, Journal, JournalSetup
from pybroker.local_store.journal.journal_items import JournalItem

_T = TypeVar("_T")


class ThreadJournal(Journal):
    """A journal with its own writer thread."""

    def __init__(self, setup: JournalSetup) -> None:
        super().__init__(setup)
        self._loop = asyncio.get_running_loop()
        self._clock = setup.clock
        self._queue: SimpleQueue[JournalItem | None] = SimpleQueue()
        # time of the `put` of the oldest waiting item; set by the event loop, taken by the writer
        self._submitted_ms = 0.0
        self._steps = BlockingSteps(self)
        self._thread = setup.threads.start("journal-writer", self._run)

    @property
    def queue_depth(self) -> int:
        return self._queue.qsize()

    def put(self, item: JournalItem) -> None:
        if not self._submitted_ms:
            self._submitted_ms = self._clock.monotonic_ms()
        self._queue.put(item)

    async def close(self, *, is_covered: bool) -> None:
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self.setup.files.close, is_covered=is_covered)

    def _run(self) -> None:
        go_on = True
        while go_on:
            item = self._queue.get()
            submitted_ms, self._submitted_ms = self._submitted_ms, 0.0
            try:
                go_on = self._collect(item)
                batch = self.note_end(self._steps.carry_out(self.batcher.close_batch(submitted_ms)))
            except BaseException as error:  # noqa: BLE001 - whatever it is, no later write may be receipted
                self._tell(self.setup.on_fatal, error)
                return
            self._tell(self.setup.completed, batch)

    def _collect(self, item: JournalItem | None) -> bool:
        while item is not None:
            if not self.batcher.take(item):
                return True
            try:
                item = self._queue.get_nowait()
            except Empty:
                return True
        return False

    def _tell(self, callback: Callable[[_T], None], value: _T) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, value)
        except RuntimeError:
            # the event loop is closed: no caller waits
            return
