"""The journal without a writer thread: the event loop encodes batches, and the kernel writes them in the background.

An idle journal writes the first item together with all items of the same event loop iteration. Items that arrive during
a write form the next batch. The event loop never blocks: writes, the next file, and free space are reported by
callbacks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from pybroker.disk.direct_io import DirectWriter
from pybroker.local_store.journal.journal import Journal, JournalSetup
from pybroker.local_store.journal.journal_batcher import Ended, MakeRoom, Step, TakeFile, Write
from pybroker.local_store.journal.journal_items import JournalBatch, JournalItem
from pybroker.local_store.journal.journal_thread import ThreadJournal

# Event that returns the next step, if there is one.
_Event = Callable[[], Step | None]


class DirectJournal(Journal):
    """A journal that the event loop writes.

    Invariant: at most one batch is in progress. While items wait and no batch is in progress, an iteration is
    scheduled.

    A batch in progress waits for its file, for free space, or for the device. The result calls `_go_on`.
    """

    def __init__(self, direct: DirectWriter, setup: JournalSetup) -> None:
        super().__init__(setup)
        self._direct = direct
        self._loop = asyncio.get_running_loop()
        self._clock = setup.clock
        self._file = setup.files.current
        self._queue: deque[JournalItem] = deque()
        self._submitted_ms = 0.0  # time of the `put` of the oldest waiting item
        self._written_since_ms = 0.0  # start of the write in progress
        self._is_erasing = False
        self._is_under_way = False
        self._is_scheduled = False
        self._has_failed = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._loop.add_reader(direct.event_descriptor, self._go_on, self._write_ended)

    @property
    def queue_depth(self) -> int:
        return len(self._queue)

    def put(self, item: JournalItem) -> None:
        if not self._submitted_ms:
            self._submitted_ms = self._clock.monotonic_ms()
        self._queue.append(item)
        self._idle.clear()
        if not self._is_under_way and not self._is_scheduled and not self._has_failed:
            self._is_scheduled = True
            self._loop.call_soon(self._go_on, self._turn_begins)

    async def close(self, *, is_covered: bool) -> None:
        if not self._has_failed:
            await self._idle.wait()
        self._loop.remove_reader(self._direct.event_descriptor)
        await asyncio.to_thread(self._direct.close)
        await asyncio.to_thread(self.setup.files.close, is_covered=is_covered)

    def _go_on(self, event: _Event) -> None:
        """Continue the batch after an event, write waiting items, and report ended batches while the device works."""
        if self._has_failed:
            return
        ended: list[JournalBatch] = []
        fatal: BaseException | None = None
        try:
            step = event()
            while step is not None:
                if type(step) is Ended:
                    ended.append(self.note_end(step))
                    step = self._next_batch()
                else:
                    step = self._begin(step)
        except BaseException as error:  # noqa: BLE001 - whatever it is, no later write may be receipted
            self._has_failed = True
            fatal = error
        for batch in ended:
            self.setup.completed(batch)
        if fatal is not None:
            self.setup.on_fatal(fatal)

    def _turn_begins(self) -> Step | None:
        self._is_scheduled = False
        return None if self._is_under_way else self._next_batch()

    def _next_batch(self) -> Step | None:
        queue, take = self._queue, self.batcher.take
        self._is_under_way = bool(queue)
        if not queue:
            self._idle.set()
            return None
        submitted_ms, self._submitted_ms = self._submitted_ms, 0.0
        while queue and take(queue.popleft()):
            pass
        return self.batcher.close_batch(submitted_ms)

    def _begin(self, step: Step) -> Step | None:
        files = self.setup.files
        if type(step) is MakeRoom:
            self._when_done(files.make_room(), self.batcher.room_made)
            return None
        if type(step) is TakeFile:
            prepared = files.next_file()
            if prepared.done():
                return self._take_file()
            self._when_done(prepared, self._take_file)
            return None
        assert type(step) is Write
        direct = self._file.direct
        assert direct is not None, "either all journal files of a disk allow direct writes, or none of them"
        self._is_erasing = step.is_erasure
        self._written_since_ms = self._clock.monotonic_ms()
        try:
            self._direct.submit(direct, step.pieces, step.offset)
        except OSError as error:
            return self.batcher.failed(error)
        return None

    def _take_file(self) -> Step:
        try:
            self._file = self.setup.files.take_next()
        except OSError as error:
            return self.batcher.failed(error)
        return self.batcher.file_taken(self._file.place)

    def _write_ended(self) -> Step | None:
        try:
            if not self._direct.finish():
                return None
        except OSError as error:
            return self.batcher.failed(error)
        if not self._is_erasing:
            self.setup.stats.synced(self._clock.monotonic_ms() - self._written_since_ms)
        return self.batcher.written()

    def _when_done(self, future: Future[Any], event: _Event) -> None:
        future.add_done_callback(lambda _: self._tell(event))

    def _tell(self, event: _Event) -> None:
        try:
            self._loop.call_soon_threadsafe(self._go_on, event)
        except RuntimeError:
            # the event loop is closed: no caller waits
            return


def open_journal(setup: JournalSetup) -> Journal:
    """Return the journal for this system: without a writer thread if each batch is synced and the system supports
    direct IO, otherwise with a writer thread.
    """
    if setup.sync_data and setup.direct_io and setup.files.current.direct is not None:
        try:
            direct = setup.files.disk.direct_writer()
        except OSError:
            pass  # forbidden, or at the limit of the system: use the thread
        else:
            return DirectJournal(direct, setup)
    return ThreadJournal(setup)
