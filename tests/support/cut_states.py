"""What a power cut may leave of a recorded directory, drawn by chance from all that its file system allows.

Strict is what POSIX promises and no more: of a file, what was synced is there, and of everything else each sector is there or not,
each change of its size too; a name lasts from the sync of its own directory on, and until then each change of names is there or
not. Ordered is ext4 with `data=ordered`: changes of names and sizes last in their order, up to a point that no sync lies behind
whose file or directory had any of its own; what a file grew by is there as far as its size says; what was overwritten, in part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.support.recorded_disk import DIRECTORY, Event, Renamed, Resized, Synced, SyncedNames, Write

SECTOR_BYTES = 512
_BLOCK_BYTES = 4096
MODES = ("strict", "ordered")


@dataclass
class _File:
    """The changes of one file, and which of them are on the device for certain."""

    changes: list[tuple[int, Write | Resized]] = field(default_factory=list)
    durable: set[int] = field(default_factory=set)

    def synced(self, covers: int) -> None:
        self.durable.update(place for place, _ in self.changes if place < covers)


class PowerCut:
    """The record up to `cut`, and what is certain of it."""

    def __init__(self, events: Sequence[Event], cut: int) -> None:
        self._files: dict[int, _File] = {}
        self._names: list[tuple[int, Renamed]] = []
        self._durable_names: set[int] = set()
        self._committed = 0  # of an ordered file system: everything before it in the record
        self._dirty: dict[int, int] = {}  # file to the place of its last change of size
        for place, event in enumerate(events[:cut]):
            if isinstance(event, Write | Resized):
                self._change(place, event)
            elif isinstance(event, Renamed):
                self._names.append((place, event))
                self._dirty.update({number: place for _, number in event.changes if number is not None})
            elif isinstance(event, Synced):
                self._sync(event)
            elif isinstance(event, SyncedNames):
                self._sync_names(event)

    def state(self, mode: str, random: Random) -> dict[Path, bytes | None]:
        """Files by path, directories as None."""
        if mode == "strict":
            kept = [event for place, event in self._names if place in self._durable_names or random.random() < 0.5]
            contents = {number: self._strict(file, random) for number, file in self._files.items()}
        else:
            last = max((place for place, _ in self._names), default=0) + 1
            until = random.choice((self._committed, last, random.randint(self._committed, max(self._committed, last))))
            kept = [event for place, event in self._names if place < until]
            contents = {number: self._ordered(file, until, random) for number, file in self._files.items()}
        names: dict[Path, int] = {}
        for event in kept:
            for path, number in event.changes:
                if number is None:
                    names.pop(path, None)
                else:
                    names[path] = number
        directories = {path for path, number in names.items() if number == DIRECTORY}
        root = min((path.parent for path in names), key=lambda path: len(path.parts), default=Path())
        found: dict[Path, bytes | None] = {}
        for path, number in sorted(names.items()):
            if all(parent in directories for parent in path.parents if root in parent.parents):
                found[path] = None if number == DIRECTORY else bytes(contents.get(number, b""))
        return found

    def _change(self, place: int, event: Write | Resized) -> None:
        file = self._files.setdefault(event.file, _File())
        file.changes.append((place, event))
        self._dirty[event.file] = place

    def _sync(self, event: Synced) -> None:
        file = self._files.setdefault(event.file, _File())
        if event.write is not None:
            file.durable.add(event.write)
            return
        file.synced(event.covers)
        if self._dirty.pop(event.file, None) is not None:
            self._committed = max(self._committed, event.covers)

    def _sync_names(self, event: SyncedNames) -> None:
        for place, renamed in self._names:
            is_inside = all(path.parent == event.directory for path, _ in renamed.changes)
            if place < event.covers and (event.directory is None or is_inside):
                if place not in self._durable_names:
                    self._committed = max(self._committed, event.covers)
                self._durable_names.add(place)
        if event.directory is None:
            self._committed = max(self._committed, event.covers)
            for file in self._files.values():
                file.synced(event.covers)

    @staticmethod
    def _strict(file: _File, random: Random) -> bytearray:
        content = bytearray()
        for place, event in file.changes:
            is_durable = place in file.durable
            if isinstance(event, Resized):
                if is_durable or random.random() < 0.5:
                    _resize(content, event.size)
            else:
                _write(content, event, "whole" if is_durable else random.choice(("lost", "whole", "sectors")), random)
        return content

    @staticmethod
    def _ordered(file: _File, until: int, random: Random) -> bytearray:
        """`until`: changes of size behind it in the record are lost, unless a sync of the file has brought them."""
        content = bytearray()
        size = 0  # as the process saw it
        has_ended = False  # what the file grew by from here on is lost
        for place, event in file.changes:
            is_durable = place in file.durable
            if isinstance(event, Resized):
                if is_durable or (place < until and not has_ended):
                    _resize(content, event.size)
                else:
                    has_ended = True
                size = event.size
                continue
            grows = event.offset + len(event.data) > size
            size = max(size, event.offset + len(event.data))
            if is_durable:
                _write(content, event, "whole", random)
            elif not grows:
                _write(content, event, random.choice(("lost", "whole", "sectors")), random, limit=len(content))
            elif not has_ended and event.offset <= len(content):
                end = random.choice((size, size, event.offset, size // _BLOCK_BYTES * _BLOCK_BYTES))
                has_ended = end < size
                _write(
                    content, Write(event.file, event.offset, event.data[: max(0, end - event.offset)]), "whole", random
                )
        return content


def _write(content: bytearray, event: Write, fate: str, random: Random, limit: int | None = None) -> None:
    """`limit`: the file does not grow beyond it."""
    if fate == "lost" or not event.data:
        return
    end = event.offset + len(event.data)
    starts = [event.offset, *range((event.offset // SECTOR_BYTES + 1) * SECTOR_BYTES, end, SECTOR_BYTES)]
    for start, stop in zip(starts, [*starts[1:], end], strict=True) if fate == "sectors" else [(event.offset, end)]:
        if fate == "sectors" and random.random() < 0.5:
            continue
        last = stop if limit is None else min(stop, limit)
        if last <= start:
            continue
        if len(content) < start:
            content.extend(bytes(start - len(content)))
        content[start:last] = event.data[start - event.offset : last - event.offset]


def _resize(content: bytearray, size: int) -> None:
    del content[size:]
    content.extend(bytes(size - len(content)))


def make(state: dict[Path, bytes | None], root: Path, target: Path) -> None:
    """Put the state of `root` into the directory `target`."""
    target.mkdir(parents=True)
    for path, data in state.items():
        place = target / path.relative_to(root)
        if data is None:
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
