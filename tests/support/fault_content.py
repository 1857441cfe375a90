"""One file of a disk that forgets: its bytes as the process sees them, those that the device has, and the writes in between.

A device takes sectors whole. Of a write that is not synced any of its sectors may arrive, or its beginning torn at any byte, or
nothing; what it would have overwritten stands there still then, so a log that is written anew may show a frame of its earlier life.
After a sync that failed the system takes the writes before it for written, whatever has arrived: no later sync brings them.
"""

from __future__ import annotations

from itertools import pairwise
from random import Random

SECTOR_BYTES = 512
_TRUNCATION = -1


class Content:
    """Bytes of one file."""

    def __init__(self, durable: bytes | bytearray = b"") -> None:
        self.cached = bytearray(durable)
        self.durable = bytearray(durable)
        # Offset, bytes, whether durable; offset -1: a truncation to the length that the bytes tell.
        self.pending: list[tuple[int, bytes, bool]] = []
        self.allocated_bytes = 0  # taken without content; a crash of the machine forgets it

    @property
    def size_bytes(self) -> int:
        return max(len(self.cached), self.allocated_bytes)

    def write(self, offset: int, data: bytes, *, durable: bool) -> None:
        _write(self.cached, offset, data)
        self.pending.append((offset, data, durable))

    def arrive_in_part(self, offset: int, data: bytes, kept_bytes: int | None) -> None:
        """The machine goes off in this write: so many bytes have arrived, None leaves it to chance."""
        self.pending.append((offset, data[:kept_bytes], kept_bytes is not None))

    def truncate(self, size: int) -> None:
        _truncate(self.cached, size)
        self.pending.append((_TRUNCATION, size.to_bytes(8, "little"), False))

    def sync(self) -> None:
        """Everything that was written since the last sync is on the device."""
        for offset, data, _ in self.pending:
            _put(self.durable, offset, data)
        self.pending.clear()

    def fail_sync(self, random: Random) -> None:
        """A sync fails: what was written since the last one has arrived or has not, and no later sync will look at it again."""
        self.durable = self._on_device(random)
        self.pending.clear()

    def after_power_loss(self, random: Random) -> Content:
        """The device's bytes and, of each write that was not synced, all, some sectors, a torn part, or nothing."""
        return Content(self._on_device(random))

    def _on_device(self, random: Random) -> bytearray:
        device = bytearray(self.durable)
        for offset, data, is_durable in self.pending:
            fate = "whole" if is_durable else random.choice(("lost", "torn", "sectors", "whole"))
            if fate == "whole" or (offset == _TRUNCATION and fate != "lost"):
                _put(device, offset, data)
            elif fate == "torn":
                _write(device, offset, data[: random.randint(0, len(data))])
            elif fate == "sectors":
                for start, end in _sectors(offset, len(data)):
                    if random.random() < 0.5:
                        _write(device, start, data[start - offset : end - offset])
        return device


def _sectors(offset: int, length: int) -> list[tuple[int, int]]:
    """Where a write is cut by the borders of sectors."""
    end = offset + length
    borders = [offset, *range((offset // SECTOR_BYTES + 1) * SECTOR_BYTES, end, SECTOR_BYTES), end]
    return list(pairwise(borders))


def _put(target: bytearray, offset: int, data: bytes) -> None:
    if offset == _TRUNCATION:
        _truncate(target, int.from_bytes(data, "little"))
    else:
        _write(target, offset, data)


def _write(target: bytearray, offset: int, data: bytes) -> None:
    if len(target) < offset:
        target.extend(bytes(offset - len(target)))
    target[offset : offset + len(data)] = data


def _truncate(target: bytearray, size: int) -> None:
    if len(target) > size:
        del target[size:]
    else:
        target.extend(bytes(size - len(target)))
