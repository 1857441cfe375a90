"""Whether there is room to take more: the watermark of free space, and the reserve that keeps room for acknowledgements.

Operation: appends are taken while the file system has `min_free_bytes` more than what the journal holds and segment files
still have to take, so that nothing receipted can fail to reach its segment. Free space is asked for at intervals, and after
every journal file and checkpoint; between two looks the count of bytes not yet in segments decides, which costs an append a
comparison. A reserved file is given up when a write finds no room, so that cursor records, checkpoints and metadata go on,
and made again when space is back; that it could be made also proves that a quota, which no figure shows, has room again.
What must always hold: appends are refused while the reserve is not there.

Concurrency: `refusal`, `decide`, `start` and `close` on the loop; `measure`, `has_room_for` and `no_room` from any thread.
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
    "no space left on the broker's disk: free some, or acknowledge, skip or expire messages, or delete topics;"
    " what nobody needs is then given back and publishing goes on by itself (storageMinFreeSpaceMB)"
)
_NO_DESCRIPTORS = (
    "the broker can open no more files: raise its limit (ulimit -n), or close connections;"
    " publishing then goes on by itself (fileDescriptorsReserve)"
)


class SpaceReserve:
    """A file that holds room and nothing else."""

    def __init__(self, disk: Disk, directory: Path, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.is_held = False
        self._disk = disk
        self._path = directory / RESERVE_NAME
        self._lock = threading.Lock()

    def adopt(self) -> None:
        """Hold what an earlier run has left. Raises OSError."""
        try:
            with self._disk.open_for_read(self._path) as file:
                self.is_held = file.size() == self.size_bytes
        except FileNotFoundError:
            self.is_held = False

    def hold(self) -> None:
        """Take the room. Raises OSError when there is none."""
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
        """Others may use the room."""
        with self._lock:
            self.is_held = False
            self._disk.unlink(self._path)


class StorageSpace:
    """Owned by the store. Made in a thread; `options` are those that suit the size of the file system."""

    def __init__(self, environment: StoreEnvironment, directory: Path, options: LocalStoreOptions) -> None:
        """Looks at the file system and takes the reserve if there is room. Raises OSError when it cannot be looked at."""
        disk = self._disk = environment.disk
        self._clock = environment.clock
        self._directory = directory
        figures = disk.space(directory)
        self._has_figures = figures is not None
        self.options = options if figures is None else fit_to_file_system(options, figures.total_bytes)
        self.free_bytes = sys.maxsize
        self.total_bytes = 0 if figures is None else figures.total_bytes  # of the file system; 0: unknown
        self.is_checkpoint_waiting = False  # for room: the reserve is for it, and appends stay refused
        self._reserve = SpaceReserve(disk, directory, self.options.reserve_bytes)
        self._reserve.adopt()
        self._margin_bytes = self.options.min_free_bytes // 4  # or one append more would end what has just begun
        self._unstored_bytes: Callable[[], int] = int
        self._on_change: Callable[[], None]
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reason: str | None = None
        self._cause: OSError | None = None  # what the last write that found no room met
        self._has_told = False
        self._resumed_s = float("-inf")
        self._wait_s = 0.0
        self._resume_not_before_s = 0.0
        self._tasks = TaskOwner("space")
        self._thread = environment.threads.pool("storage-space")
        self._look()

    def start(self, unstored_bytes: Callable[[], int], on_change: Callable[[], None]) -> None:
        """Begin to watch. `unstored_bytes` tells what segment files still have to take; `on_change` hears of every turn."""
        self._unstored_bytes = unstored_bytes
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        if self._has_figures:
            self._tasks.start(self._watch(), "watch")
        self.decide()

    def refusal(self) -> str | None:
        """Why appends are refused now; None when they are taken."""
        if self._reason is None and self.free_bytes < self._needed_bytes():
            self._refuse()
        return self._reason

    def decide(self) -> None:
        """Refuse or take appends again, as the last look says."""
        if self._reason is None:
            if not self._reserve.is_held or self.free_bytes < self._needed_bytes():
                self._refuse()
        elif (
            self._reserve.is_held
            and self.free_bytes >= self._needed_bytes() + self._margin_bytes
            and self._now_s() >= self._resume_not_before_s
        ):
            logs.info("storage.has_space", free_mib=self.free_bytes // _MIB)
            self._resumed_s = self._now_s()
            self._reason = self._cause = None
            self._on_change()

    def measure(self) -> None:
        """Something was written: look how much room is left."""
        figures = self._disk.space(self._directory)
        if figures is not None:
            self.free_bytes, self.total_bytes = figures.free_bytes, figures.total_bytes

    def has_room_for(self, size_bytes: int) -> bool:
        """Whether so much can be taken without coming near the watermark."""
        return self.free_bytes - size_bytes >= self._needed_bytes()

    def no_room(self, error: OSError | None = None) -> None:
        """A write found no room: what is reserved may be used now, and no append is taken until space is back."""
        if error is not None:
            self._cause = error
        self._reserve.give_up()
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self.decide)
            except RuntimeError:
                return  # the loop is closed, nobody appends any more

    async def close(self) -> None:
        await self._tasks.close()
        await asyncio.to_thread(self._thread.shutdown)

    def _needed_bytes(self) -> int:
        return self.options.min_free_bytes + self._unstored_bytes()

    def _now_s(self) -> float:
        return self._clock.monotonic_ms() / 1000

    def _back_off(self) -> None:
        """Double the wait each time that space runs out shortly after appends were accepted again.

        In that case writes cannot use the free space that the file system reports: because of a quota, or because a
        journal file is larger than the free space. Without the wait, every poll would accept and refuse appends and log
        both.
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
            reason=self._cause or "below the watermark",
            free_mib=free_mib,
            needed_mib=self._needed_bytes() // _MIB,
        )
        if not self._has_figures:
            self._tasks.start(self._watch(), "watch")
        self._on_change()

    async def _watch(self) -> None:
        """Look again and again; without figures only as long as appends are refused."""
        loop = asyncio.get_running_loop()
        while self._has_figures or self._reason is not None:
            await asyncio.sleep(self.options.space_poll_s)
            await loop.run_in_executor(self._thread, self._look)
            self.decide()

    def _look(self) -> None:
        """In a thread: measure, and give up or take the reserve."""
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
            # Appends stay refused without the reserve, and the next look tries again.
            if not self._has_told and not lacks_room(error):
                logs.error("storage.space_unknown", error=str(error))
                self._has_told = True
