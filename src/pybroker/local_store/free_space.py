"""The free disk space that appends need, and a reserve file that keeps space for acknowledgements.

Operation: the store accepts appends while the file system has `min_free_bytes` more than the journal bytes that are not
yet in segment files, so every entry with a receipt can reach its segment. Free space is measured at intervals, and
after every journal file and checkpoint. If a write fails for lack of space, the store deletes the reserve file, so that
cursor records, checkpoints and metadata can still be written.

Invariant: appends are refused while the reserve file does not exist.

Concurrency: `refusal`, `decide`, `start` and `close` on the event loop; `measure`, `has_room_for` and `no_room` from
any thread.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from pybroker.disk.disk import Disk
from pybroker.disk.shortage import lacks_descriptors, lacks_room
from pybroker.local_store.store_environment import StoreEnvironment
from pybroker.local_store.store_options import LocalStoreOptions, fit_to_file_system
from pybroker.runtime import logs
from pybroker.runtime.tasks import TaskOwner

RESERVE_NAME = "space.reserve"
_MIB = 1 << 20
_RELAPSE_POLLS = 40
"""If space runs out again within this number of polls, the next attempt waits twice as long."""
_MAX_WAIT_POLLS = 240
_NO_SPACE = (
    "no space left on the broker's disk (storageMinFreeSpaceMB): free disk space, or acknowledge, skip or expire messages,"
    " or delete topics. The broker then deletes unused ledgers and accepts messages again"
)
_NO_DESCRIPTORS = (
    "the broker cannot open more files (fileDescriptorsReserve): raise its limit (ulimit -n), or close connections."
    " The broker then accepts messages again"
)


class SpaceReserve:
    """The reserve file, which only occupies disk space."""

    def __init__(self, disk: Disk, directory: Path, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.is_held = False
        self._disk = disk
        self._path = directory / RESERVE_NAME
        self._lock = threading.Lock()

    def adopt(self) -> None:
        try:
            with self._disk.open_for_read(self._path) as file:
                self.is_held = file.size() == self.size_bytes
        except FileNotFoundError:
            self.is_held = False

    def hold(self) -> None:
        with self._lock:
            if self.is_held:
                return
            try:
                with self._disk.open_for_write(self._path) as file:
                    file.truncate(0)
                    file.allocate(self.size_bytes)
                self._disk.sync_directory(self._path.parent)
            except OSError:
                self._disk.unlink(self._path)
                raise
            self.is_held = True

    def give_up(self) -> None:
        with self._lock:
            self.is_held = False
            self._disk.unlink(self._path)


class StorageSpace:
    """Decides by the free disk space whether the store accepts appends."""

    def __init__(self, environment: StoreEnvironment, directory: Path, options: LocalStoreOptions) -> None:
        """Measure the file system, fit `options` to its size, and allocate the reserve if there is space. Raises
        OSError if the file system cannot be measured.
        """
        disk = self._disk = environment.disk
        self._clock = environment.clock
        self._directory = directory
        figures = disk.space(directory)
        self._has_figures = figures is not None
        self.options = options if figures is None else fit_to_file_system(options, figures.total_bytes)
        self.free_bytes = sys.maxsize
        self.total_bytes = 0 if figures is None else figures.total_bytes  # size of the file system; 0 if unknown
        # a checkpoint waits for space: the reserve is not allocated and appends stay refused
        self.is_checkpoint_waiting = False
        self._reserve = SpaceReserve(disk, directory, self.options.reserve_bytes)
        self._reserve.adopt()
        self._margin_bytes = (
            self.options.min_free_bytes // 4
        )  # otherwise the next append could be refused again at once
        self._unstored_bytes: Callable[[], int] = int
        self._on_change: Callable[[], None]
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reason: str | None = None
        self._cause: OSError | None = None  # error of the last write without disk space
        self._has_told = False
        self._resumed_s = float("-inf")
        self._wait_s = 0.0
        self._resume_not_before_s = 0.0
        self._tasks = TaskOwner("space")
        self._thread = environment.threads.pool("storage-space")
        self._look()

    def start(self, unstored_bytes: Callable[[], int], on_change: Callable[[], None]) -> None:
        """Start to measure free space at intervals. `unstored_bytes` returns the bytes not yet in segment files;
        `on_change` is called when appends become refused or accepted.
        """
        self._unstored_bytes = unstored_bytes
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        if self._has_figures:
            self._tasks.start(self._watch(), "watch")
        self.decide()

    def refusal(self) -> str | None:
        # `_needed_bytes`, without its call: this runs for each append.
        if self._reason is None and self.free_bytes < self.options.min_free_bytes + self._unstored_bytes():
            self._refuse()
        return self._reason

    def decide(self) -> None:
        if self._reason is None:
            if not self._reserve.is_held or self.free_bytes < self._needed_bytes():
                self._refuse()
        elif (
            self._reserve.is_held
            and self.free_bytes >= self._needed_bytes() + self._margin_bytes
            and self._now_s() >= self._resume_not_before_s
        ):
            logs.info("storage.space_available", free_mib=self.free_bytes // _MIB)
            self._resumed_s = self._now_s()
            self._reason = self._cause = None
            self._on_change()

    def measure(self) -> None:
        figures = self._disk.space(self._directory)
        if figures is not None:
            self.free_bytes, self.total_bytes = figures.free_bytes, figures.total_bytes

    def has_room_for(self, size_bytes: int) -> bool:
        """Return whether the free space that appends need would remain after a write of `size_bytes`."""
        return self.free_bytes - size_bytes >= self._needed_bytes()

    def no_room(self, error: OSError | None = None) -> None:
        """Handle a write that failed for lack of disk space: delete the reserve file, and refuse appends until space is
        available.
        """
        if error is not None:
            self._cause = error
        self._reserve.give_up()
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self.decide)
            except RuntimeError:
                return  # the event loop is closed, so no append follows

    async def close(self) -> None:
        await self._tasks.close()
        await asyncio.to_thread(self._thread.shutdown)

    def _needed_bytes(self) -> int:
        return self.options.min_free_bytes + self._unstored_bytes()

    def _now_s(self) -> float:
        return self._clock.monotonic_ms() / 1000

    def _back_off(self) -> None:
        """Double the wait for the next attempt, if space runs out shortly after appends were accepted again.

        A quota, or a larger journal file, can prevent writes although the file system reports free space. Without the
        wait, each measurement would accept appends, refuse them again, and log both.
        """
        poll_s, now_s = self.options.space_poll_s, self._now_s()
        is_relapse = now_s - self._resumed_s < _RELAPSE_POLLS * poll_s
        self._wait_s = min(max(2 * self._wait_s, poll_s), _MAX_WAIT_POLLS * poll_s) if is_relapse else 0.0
        self._resume_not_before_s = now_s + self._wait_s

    def _refuse(self) -> None:
        self._back_off()
        self._reason = _NO_DESCRIPTORS if lacks_descriptors(self._cause) else _NO_SPACE
        free_mib = self.free_bytes // _MIB if self._has_figures else None
        logs.warning(
            "storage.full",
            reason=self._cause or "less free space than required",
            free_mib=free_mib,
            needed_mib=self._needed_bytes() // _MIB,
        )
        if not self._has_figures:
            self._tasks.start(self._watch(), "watch")
        self._on_change()

    async def _watch(self) -> None:
        """Measure at intervals. If the file system reports no free space figures, stop when appends are accepted."""
        loop = asyncio.get_running_loop()
        while self._has_figures or self._reason is not None:
            await asyncio.sleep(self.options.space_poll_s)
            await loop.run_in_executor(self._thread, self._look)
            self.decide()

    def _look(self) -> None:
        reserve = self._reserve
        try:
            self.measure()
            if reserve.is_held:
                if self.free_bytes < reserve.size_bytes:
                    reserve.give_up()
            elif not self.is_checkpoint_waiting and self.has_room_for(reserve.size_bytes + self._margin_bytes):
                reserve.hold()
                self.measure()
            self._has_told = False
        except OSError as error:
            # Appends stay refused without the reserve. The next measurement tries again.
            if not self._has_told and not lacks_room(error):
                logs.error("storage.space_unknown", error=str(error))
                self._has_told = True
