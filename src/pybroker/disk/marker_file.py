"""Marker files: a few numbers in a small memory-mapped file, which survive the process without a sync.

Each write goes to the next slot of the layout, without a system call. After `kill -9` the page cache still contains it;
without a sync, a power failure may lose the last writes.

Concurrency: one thread at a time, except `sync`.
"""

from __future__ import annotations

import mmap
import os
import sys
from itertools import cycle

from pybroker.disk.device_sync import sync_to_device
from pybroker.storage_format.marker_layout import MarkerLayout


class MappedFile:
    """A small memory-mapped file."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor = descriptor
        self._bytes = mmap.mmap(descriptor, size)

    def content(self) -> bytes:
        return self._bytes[:]

    def write(self, data: bytes, offset: int) -> None:
        self._bytes[offset : offset + len(data)] = data

    def sync(self) -> None:
        if sys.platform != "linux":
            self._bytes.flush()  # other systems do not write mapped pages in a sync of the file
        sync_to_device(self._descriptor)

    def close(self) -> None:
        self._bytes.close()
        os.close(self._descriptor)


class MarkerFile:
    """A mapped file with the slots of a layout."""

    def __init__(self, memory: MappedFile, layout: MarkerLayout) -> None:
        self._memory = memory
        self._layout = layout
        count = layout.slot_count
        self._offsets = cycle([layout.slot_offset(number % count) for number in range(1, count + 1)])

    def content(self) -> bytes:
        return self._memory.content()

    def write(self, *values: int) -> None:
        self.write_slot(self._layout.encode(*values))

    def write_slot(self, slot: bytes) -> None:
        """Write a slot that the caller has encoded with this file's layout."""
        self._memory.write(slot, next(self._offsets))

    def sync(self) -> None:
        self._memory.sync()

    def close(self) -> None:
        self._memory.close()
