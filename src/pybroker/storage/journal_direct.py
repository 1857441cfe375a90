"""The journal without a writer thread: the loop collects and encodes, the kernel writes in the background.

Same rules and same bytes as `journal.py`; only who waits for the device is another. The first item while idle is written with all
that the same turn of the loop still brings; what comes during a write goes together into the next one.
"""

from __future__ import annotations

import asyncio
from queue import Empty
from time import perf_counter

from pybroker.storage.direct_io import DirectWriter
from pybroker.storage.disk import is_out_of_space
from pybroker.storage.journal import Journal, JournalBatch, JournalItem, JournalSetup


class DirectJournal(Journal):
    """Owned by the store. Invariant: at most one batch is in flight; a turn is scheduled while items wait and none is."""

    def __init__(self, direct: DirectWriter, setup: JournalSetup) -> None:
        self._direct = direct
        self._in_flight: JournalBatch | None = None
        self._in_flight_since_s = 0.0
        self._is_scheduled = False
        self._has_failed = False
        self._idle = asyncio.Event()
        self._idle.set()
        super().__init__(setup)

    def _start(self) -> None:
        self._loop.add_reader(self._direct.event_descriptor, self._written)

    def put(self, item: JournalItem) -> None:
        super().put(item)
        self._idle.clear()
        if self._in_flight is None and not self._is_scheduled and not self._has_failed:
            self._is_scheduled = True
            self._loop.call_soon(self._begin)

    async def close(self) -> None:
        if not self._has_failed:
            await self._idle.wait()
        self._loop.remove_reader(self._direct.event_descriptor)
        self._direct.close()
        await asyncio.to_thread(self._files.close)

    def _begin(self) -> None:
        """The turn that `put` asked for."""
        self._is_scheduled = False
        if self._in_flight is None:
            self._go_on([])

    def _written(self) -> None:
        """The event descriptor is readable."""
        batch = self._in_flight
        assert batch is not None
        ended: list[JournalBatch] = []
        try:
            if not self._direct.finish():
                return
            self._stats.journal_sync_s += perf_counter() - self._in_flight_since_s
            self._advance(batch)
            self._end(batch)
            ended.append(batch)
        except OSError as error:
            self._failed(batch, error, ended)
        self._in_flight = None
        self._go_on(ended)

    def _go_on(self, ended: list[JournalBatch]) -> None:
        """Write what waits, then tell what has ended: the device works while the completions are handed out."""
        while self._in_flight is None and not self._has_failed:
            try:
                item = self._queue.get_nowait()
            except Empty:
                self._idle.set()
                break
            batch = JournalBatch()
            self._collect(batch, item)
            try:
                if batch.parts:
                    self._in_flight_since_s = perf_counter()
                    pieces = self._encode(batch)
                    assert self._file.direct_descriptor is not None, "all files of a disk are alike"
                    self._direct.submit(self._file.direct_descriptor, pieces, self._file.offset)
                    self._in_flight = batch
                else:  # marks, or runs of a fenced ledger
                    self._end(batch)
                    ended.append(batch)
            except OSError as error:
                self._failed(batch, error, ended)
        for batch in ended:
            self._completed(batch)

    def _failed(self, batch: JournalBatch, error: OSError, ended: list[JournalBatch]) -> None:
        """No room refuses the batch; anything else means that no later write may be receipted."""
        try:
            if not is_out_of_space(error):
                raise error
            self._refuse(batch, error)
        except OSError as fatal:
            self._has_failed = True
            self._on_fatal(fatal)
            return
        self._end(batch)
        ended.append(batch)


def open_journal(setup: JournalSetup, *, direct_io: bool) -> Journal:
    """The journal that suits disk and options: direct where each batch must be on the device and the system can do it."""
    setup.files.start()
    if setup.sync_data and direct_io and setup.files.current.direct_descriptor is not None:
        try:
            direct = DirectWriter()
        except OSError:
            pass  # forbidden, or the system's own limit is reached: the thread does it
        else:
            return DirectJournal(direct, setup)
    return Journal(setup)
