"""One file of a `FaultDisk`: the bytes that the process sees, those on the device, and the pending writes.

A device writes whole sectors. Of a write that is not synced, any sectors may arrive, or a beginning torn at any byte,
or nothing. What it would overwrite is still there then, so a rewritten log may show an older frame. After a failed
sync, the system treats the earlier writes as written even if they have not arrived: no later sync writes them.
"""

from __future__ import annotations

from itertools import pairwise
from random import Random

SECTOR_BYTES = 512
_TRUNCATION = -1


class Content:
    """The bytes of one file."""

    def __init__(self, durable: bytes | bytearray = b"") -> None:
        self.cached = bytearray(durable)
        self.durable = bytearray(durable)
        # Offset, bytes, whether durable. Offset -1: truncation to the length encoded in the bytes.
        self.pending: list[tuple[int, bytes, bool]] = []
        self.allocated_bytes = 0  # allocated without content; lost in a crash of the machine

    @property
    def size_bytes(self) -> int:
        return max(len(self.cached), self.allocated_bytes)

    def write(self, offset: int, data: bytes, *, durable: bool) -> None:
        _write(self.cached, offset, data)
        self.pending.append((offset, data, durable))

    def arrive_in_part(self, offset: int, data: bytes, kept_bytes: int | None) -> None:
        """Record a write during which the power fails: `kept_bytes` have arrived; None: random."""
        self.pending.append((offset, data[:kept_bytes], kept_bytes is not None))

    def truncate(self, size: int) -> None:
        _truncate(self.cached, size)
        self.pending.append((_TRUNCATION, size.to_bytes(8, "little"), False))

    def sync(self) -> None:
        """Make all writes since the last sync durable."""
        for offset, data, _ in self.pending:
            _put(self.durable, offset, data)
        self.pending.clear()

    def fail_sync(self, random: Random) -> None:
        """Fail a sync: each write since the last one has arrived or not, and later syncs ignore it."""
        self.durable = self._on_device(random)
        self.pending.clear()

    def after_power_loss(self, random: Random) -> Content:
        """Return the device's bytes with all, some sectors, a torn part, or nothing of each unsynced write."""
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
    """Split a write at sector boundaries."""
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
