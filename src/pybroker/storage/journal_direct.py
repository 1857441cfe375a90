"""The journal without a writer thread: the loop collects and encodes, the kernel writes in the background.

Same rules and same bytes as `journal.py`; only who waits for the device is another. The first item while idle is written with all
that the same turn of the loop still brings; what comes during a write goes together into the next one.
The loop never waits here: not for a write, not for the next file, not for room; each of them calls back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty
from typing import Any

from pybroker.storage.direct_io import DirectWriter
from pybroker.storage.disk import lacks_room
from pybroker.storage.journal import ERASED, Journal, JournalBatch, JournalItem, JournalSetup
from pybroker.storage.layout.journal import BATCH_HEADER_BYTES

# Something that has happened; it adds the batches that have ended by it.
_Event = Callable[[list[JournalBatch]], None]


class DirectJournal(Journal):
    """Owned by the store. Invariant: at most one batch is under way; a turn is scheduled while items wait and none is.

    A batch under way waits for its file, is being written, or, refused, is being erased. What comes back calls `_step`.
    """

    def __init__(self, direct: DirectWriter, setup: JournalSetup) -> None:
        self._direct = direct
        self._batch: JournalBatch | None = None
        self._is_erasing = False
        self._submitted_at_ms = 0.0
        self._is_scheduled = False
        self._has_failed = False
        self._idle = asyncio.Event()
        self._idle.set()
        super().__init__(setup)

    def _start(self) -> None:
        self._loop.add_reader(self._direct.event_descriptor, self._step, self._write_ended)

    def put(self, item: JournalItem) -> None:
        super().put(item)
        self._idle.clear()
        if self._batch is None and not self._is_scheduled and not self._has_failed:
            self._is_scheduled = True
            self._loop.call_soon(self._step, self._turn_begins)

    async def close(self, *, is_covered: bool) -> None:
        if not self._has_failed:
            await self._idle.wait()
        self._loop.remove_reader(self._direct.event_descriptor)
        await asyncio.to_thread(self._direct.close)
        await asyncio.to_thread(self._files.close, is_covered=is_covered)

    def _step(self, event: _Event) -> None:
        """Something happened: go on from there, then write what waits, and last tell what has ended, while the device works."""
        if self._has_failed:
            return
        ended: list[JournalBatch] = []
        fatal: BaseException | None = None
        try:
            event(ended)
            while self._batch is None:
                try:
                    item = self._queue.get_nowait()
                except Empty:
                    self._idle.set()
                    break
                batch = JournalBatch()
                self._collect(batch, item)
                if batch.parts:
                    self._batch = batch
                    self._write_batch(ended)
                else:  # marks, or runs of a fenced ledger
                    self._end(batch)
                    ended.append(batch)
        except BaseException as error:  # noqa: BLE001 - whatever it is, no later write may be receipted
            self._has_failed = True
            fatal = error
        for batch in ended:
            self._completed(batch)
        if fatal is not None:
            self._on_fatal(fatal)

    def _turn_begins(self, ended: list[JournalBatch]) -> None:
        """The turn that `put` asked for; `_step` takes what waits."""
        self._is_scheduled = False

    def _write_batch(self, ended: list[JournalBatch]) -> None:
        """Submit the batch, once there is a file with room for it."""
        batch = self._batch
        assert batch is not None
        body = b"".join(batch.parts)
        batch.parts = [body]
        if self._needs_next_file(BATCH_HEADER_BYTES + len(body)):
            prepared = self._files.next_file()
            if not prepared.done():
                self._wait_for(prepared, self._write_batch)
                return
        try:
            self._submit(self._encode(batch))
        except OSError as error:
            self._write_failed(error, ended)

    def _write_ended(self, ended: list[JournalBatch]) -> None:
        """The event descriptor is readable."""
        try:
            if not self._direct.finish():
                return
        except OSError as error:
            self._write_failed(error, ended)
            return
        batch = self._batch
        assert batch is not None
        if not self._is_erasing:
            self._stats.synced(self._clock.monotonic_ms() - self._submitted_at_ms)
            self._advance(batch)
        self._batch_ends(batch, ended)

    def _write_failed(self, error: OSError, ended: list[JournalBatch]) -> None:
        """No room refuses what is in the batch, records at the second attempt only. Raises any other error."""
        batch = self._batch
        assert batch is not None
        if self._is_erasing:
            if not lacks_room(error):
                raise error
            self._batch_ends(batch, ended)
            return
        if batch.error is None:
            self._refuse_runs(batch, error)
            self._wait_for(self._files.make_room(), self._write_rest)
        else:
            self._refuse_records(batch, error)
            self._erase(batch, ended)

    def _write_rest(self, ended: list[JournalBatch]) -> None:
        """The reserve is given up: for what is not refused."""
        batch = self._batch
        assert batch is not None
        if batch.parts:
            self._write_batch(ended)
        else:
            self._erase(batch, ended)

    def _erase(self, batch: JournalBatch, ended: list[JournalBatch]) -> None:
        if not self._must_erase():
            self._batch_ends(batch, ended)
            return
        self._is_erasing = True
        try:
            self._submit((ERASED,))
        except OSError as erase_error:
            self._write_failed(erase_error, ended)

    def _batch_ends(self, batch: JournalBatch, ended: list[JournalBatch]) -> None:
        self._is_erasing = False
        self._batch = None
        self._end(batch)
        ended.append(batch)

    def _submit(self, pieces: tuple[bytes, ...]) -> None:
        file = self._file.direct
        assert file is not None, "all files of a disk are alike"
        self._submitted_at_ms = self._clock.monotonic_ms()
        self._direct.submit(file, pieces, self._file.offset)

    def _wait_for(self, future: Future[Any], event: _Event) -> None:
        """The batch goes on with `event` when `future` is done."""
        future.add_done_callback(lambda _: self._tell(self._step, event))


def open_journal(setup: JournalSetup, *, direct_io: bool) -> Journal:
    """The journal that suits disk and options: direct where each batch must be on the device and the system can do it."""
    setup.files.start()
    if setup.sync_data and direct_io and setup.files.current.direct is not None:
        try:
            direct = setup.files.disk.direct_writer()
        except OSError:
            pass  # forbidden, or the system's own limit is reached: the thread does it
        else:
            return DirectJournal(direct, setup)
    return Journal(setup)
