"""Layouts of Avro values, with which readers skip values and find the items of lists.

Two implementations find the same positions and errors: numpy for many payloads at once, and plain Python for few
payloads with long lists, because a numpy step costs as much for one payload as for a hundred. Invariant: the time is
linear in the available bytes, whatever lengths the payload claims.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from dataclasses import dataclass
from typing import Any

import numpy as np

from pybroker.columns.values.lanes import Lanes, Mask, Numbers

MAX_EMPTY_ITEMS = 8
"""Maximum number of items of zero bytes (nulls, empty records) in a list: their claimed number is not limited by
bytes.
"""
FEW_LANES = 96
"""Below this number of lanes, plain Python is faster than numpy at following items one by one."""
_LONG_RUN = 32
"""From this count in one block, the ends of numbers are found by examining all of its bytes at once."""


class BadBytes(Exception):
    """A payload is invalid from a position on."""


class Shape(ABC):
    """The layout of values of one type in the writer's schema. Immutable."""

    fixed_width: int | None = None
    """Size of all values, if it is constant."""
    least_width: int = 0
    """Minimum size of a value, reported as at most 1."""

    @abstractmethod
    def skip(self, lanes: Lanes) -> None: ...

    @abstractmethod
    def skip_one(self, data: memoryview, place: int, end: int) -> int:
        """Return the offset after the value at offset `place` of `data`, which ends at `end`. Raises BadBytes for a
        truncated or invalid value.
        """


class FixedShape(Shape):
    """The layout of values with a constant size, which may be 0."""

    def __init__(self, width: int) -> None:
        self.fixed_width = width
        self.least_width = min(1, width)
        self.width = width

    def skip(self, lanes: Lanes) -> None:
        if not self.width:
            return
        short = lanes.ends - lanes.places < self.width
        if short.any():
            lanes.fail(short, "the payload ends within a value, so it is damaged or has another schema")
        lanes.places = lanes.places + np.where(short, 0, self.width)

    def skip_one(self, data: memoryview, place: int, end: int) -> int:
        if end - place < self.width:
            raise BadBytes("the payload ends within a value, so it is damaged or has another schema")
        return place + self.width


class NumberShape(Shape):
    """The layout of an int, a long or a symbol index."""

    least_width = 1

    def skip(self, lanes: Lanes) -> None:
        lanes.read_unsigned_or_zigzag()

    def skip_one(self, data: memoryview, place: int, end: int) -> int:
        return read_one_long(data, place, end)[1]


class BytesShape(Shape):
    """The layout of bytes or text: a length, then the bytes."""

    least_width = 1

    def skip(self, lanes: Lanes) -> None:
        lengths = lanes.read_length()
        lanes.places = lanes.places + lengths

    def skip_one(self, data: memoryview, place: int, end: int) -> int:
        length, place = read_one_long(data, place, end)
        if not 0 <= length <= end - place:
            raise BadBytes(
                "a string or bytes value is longer than the rest of the payload: the payload is damaged or has another schema"
            )
        return place + length


class RecordShape(Shape):
    """The layout of a record: its fields, one after the other."""

    def __init__(self, fields: list[Shape]) -> None:
        self.fields = fields
        widths = [shape.fixed_width for shape in fields]
        self.fixed_width = None if None in widths else sum(width or 0 for width in widths)
        self.least_width = min(1, sum(shape.least_width for shape in fields))

    def skip(self, lanes: Lanes) -> None:
        for shape in self.fields:
            shape.skip(lanes)

    def skip_one(self, data: memoryview, place: int, end: int) -> int:
        for shape in self.fields:
            place = shape.skip_one(data, place, end)
        return place


class UnionShape(Shape):
    """The layout of a union: a branch index, then the value."""

    least_width = 1

    def __init__(self, branches: list[Shape]) -> None:
        self.branches = branches

    def read_branch(self, lanes: Lanes) -> Numbers:
        branch = lanes.read_long()
        wrong = (branch < 0) | (branch >= len(self.branches))
        if wrong.any():
            lanes.fail(
                wrong,
                "a union value has an unknown branch number: the payload is damaged or has another schema",
            )
            branch[wrong] = -1
        return branch

    def skip(self, lanes: Lanes) -> None:
        branch = self.read_branch(lanes)
        for index in np.unique(branch).tolist():
            if index < 0 or self.branches[index].fixed_width == 0:
                continue
            where = np.nonzero(branch == index)[0]
            part = lanes.at(where)
            self.branches[index].skip(part)
            lanes.put_back(where, part)

    def skip_one(self, data: memoryview, place: int, end: int) -> int:
        branch, place = read_one_long(data, place, end)
        if not 0 <= branch < len(self.branches):
            raise BadBytes("a union value has an unknown branch number: the payload is damaged or has another schema")
        return self.branches[branch].skip_one(data, place, end)


@dataclass(slots=True)
class Items:
    """The items of the lists in several lanes, in lane order: positions, ends, lane numbers, and the number of items of
    each lane.
    """

    starts: Numbers
    ends: Numbers
    lanes: Numbers
    counts: Numbers


class ListShape(Shape):
    """The layout of an array or map: blocks of items, each preceded by their count, and a count of 0 at the end.

    A map is a list of key-value items.
    """

    least_width = 1

    def __init__(self, item: Shape) -> None:
        self.item = item

    def skip(self, lanes: Lanes) -> None:
        self.find_items(lanes)

    def skip_one(self, data: memoryview, place: int, end: int) -> int:
        return self._walk_one(data, place, end, 0, None)

    def find_items(self, lanes: Lanes) -> Items:
        found: list[tuple[Numbers, Numbers, Numbers]] = []  # starts, ends, lanes
        totals = np.zeros(len(lanes), dtype=np.int64)
        active = np.arange(len(lanes), dtype=np.int64)
        while len(active):
            if len(active) < FEW_LANES:
                self._follow_singly(lanes, active, totals, found)
                break
            part = lanes.at(active)
            counts = self._read_counts(part, totals[active])
            totals[active] += counts
            self._find_block(part, active, counts, found)
            lanes.put_back(active, part)
            active = active[(counts > 0) & (lanes.places[active] < lanes.ends[active])]
            # Fails a list that reaches the end of its payload without the final 0.
            unended = (counts > 0) & (part.places >= part.ends)
            if unended.any():
                part.fail(unended, "the payload ends within a value, so it is damaged or has another schema")
        return self._in_order(lanes, found)

    def _read_counts(self, lanes: Lanes, already: Numbers) -> Numbers:
        counts = lanes.read_long()
        sized = np.nonzero(counts < 0)[0]
        if len(sized):
            part = lanes.at(sized)
            size = part.read_long()
            lanes.put_back(sized, part)
            part.ends = lanes.ends[sized]
            with np.errstate(over="ignore"):
                counts[sized] = -counts[sized]
            wrong = sized[(size < 0) | (counts[sized] < 0)]
            if len(wrong):
                lanes.fail(
                    wrong,
                    "a list claims a negative size: the payload is damaged or has another schema",
                )
                counts[wrong] = 0
        wrong_claims = counts > self._most_items(lanes.ends - lanes.places, already)
        if wrong_claims.any():
            lanes.fail(
                wrong_claims,
                "a list has more items than the rest of the payload can contain: the payload is damaged or has another schema",
            )
            counts[wrong_claims] = 0
        return counts

    def _most_items(self, left: Any, already: Any) -> Any:
        if self.item.fixed_width == 0 or not self.item.least_width:
            return MAX_EMPTY_ITEMS - already
        return left // (self.item.fixed_width or 1)

    def _find_block(
        self, lanes: Lanes, numbers: Numbers, counts: Numbers, found: list[tuple[Numbers, Numbers, Numbers]]
    ) -> None:
        width = self.item.fixed_width
        if width is not None:
            which = np.repeat(np.arange(len(counts)), counts)
            rank = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
            starts = lanes.places[which] + rank * width
            found.append((starts, starts + width, numbers[which]))
            lanes.places = lanes.places + counts * width
            return
        left = counts.copy()
        active = np.nonzero(left > 0)[0]
        while len(active) >= FEW_LANES:
            part = lanes.at(active)
            starts = part.places.copy()  # a copy, because skipping changes the positions in place
            self.item.skip(part)
            found.append((starts, part.places, numbers[active]))
            lanes.put_back(active, part)
            left[active] -= 1
            active = active[left[active] > 0]
        data = memoryview(lanes.data)  # type: ignore[arg-type]
        for lane in active.tolist():
            self._follow_items(lanes, data, lane, int(numbers[lane]), int(left[lane]), found)

    def _follow_items(
        self, lanes: Lanes, data: memoryview, lane: int, number: int, count: int, found: list[Any]
    ) -> None:
        bounds = array("q")
        try:
            lanes.places[lane] = self._walk_items(data, int(lanes.places[lane]), int(lanes.ends[lane]), count, bounds)
        except BadBytes as error:
            lanes.fail(np.array([lane]), str(error))
            return
        _add_bounds(found, bounds, number)

    def _follow_singly(
        self, lanes: Lanes, active: Numbers, totals: Numbers, found: list[tuple[Numbers, Numbers, Numbers]]
    ) -> None:
        data = memoryview(lanes.data)  # type: ignore[arg-type]
        for lane in active.tolist():
            bounds = array("q")
            place, end = int(lanes.places[lane]), int(lanes.ends[lane])
            try:
                lanes.places[lane] = self._walk_one(data, place, end, int(totals[lane]), bounds)
            except BadBytes as error:
                lanes.fail(np.array([lane]), str(error))
                continue
            _add_bounds(found, bounds, lane)

    def _walk_one(self, data: memoryview, place: int, end: int, total: int, bounds: array[int] | None) -> int:
        while True:
            count, place = read_one_long(data, place, end)
            if count == 0:
                return place
            if count < 0:
                count = -count
                size, place = read_one_long(data, place, end)
                if size < 0:
                    raise BadBytes("a list claims a negative size: the payload is damaged or has another schema")
            if count > self._most_items(end - place, total):
                raise BadBytes(
                    "a list has more items than the rest of the payload can contain: the payload is damaged or has another schema"
                )
            total += count
            place = self._walk_items(data, place, end, count, bounds)

    def _walk_items(self, data: memoryview, place: int, end: int, count: int, bounds: array[int] | None) -> int:
        width = self.item.fixed_width
        if width is not None:
            if bounds is not None:
                starts = place + np.arange(count, dtype=np.int64) * width
                bounds.frombytes(np.column_stack((starts, starts + width)).tobytes())
            return place + count * width
        if count >= _LONG_RUN and isinstance(self.item, NumberShape):
            return _walk_numbers(data, place, end, count, bounds)
        skip_one = self.item.skip_one
        for _ in range(count):
            start = place
            place = skip_one(data, place, end)
            if bounds is not None:
                bounds.append(start)
                bounds.append(place)
        return place

    @staticmethod
    def _in_order(lanes: Lanes, found: list[tuple[Numbers, Numbers, Numbers]]) -> Items:
        empty = np.empty(0, dtype=np.int64)
        starts, ends, owners = (
            (np.concatenate(column) for column in zip(*found, strict=True)) if found else (empty, empty, empty)
        )
        if len(found) > 1:
            order = np.argsort(owners, kind="stable")
            starts, ends, owners = starts[order], ends[order], owners[order]
        if lanes.failures.count:
            good: Mask = ~lanes.failures.rows[lanes.rows[owners]]
            starts, ends, owners = starts[good], ends[good], owners[good]
        counts = np.bincount(owners, minlength=len(lanes)).astype(np.int64)
        return Items(starts, ends, owners, counts)


def _add_bounds(found: list[Any], bounds: array[int], number: int) -> None:
    if bounds:
        both = np.frombuffer(bounds, dtype=np.int64)
        found.append((both[0::2], both[1::2], np.full(len(both) // 2, number, dtype=np.int64)))


def _walk_numbers(data: memoryview, place: int, end: int, count: int, bounds: array[int] | None) -> int:
    region = np.frombuffer(data, dtype=np.uint8, count=min(end - place, 10 * count), offset=place)
    last = np.nonzero(region < 0x80)[0][:count]
    if len(last) < count:
        raise BadBytes("the payload ends within a value, so it is damaged or has another schema")
    after = last + place + 1
    starts = np.concatenate(([place], after[:-1]))
    if int((after - starts).max()) > 10:
        raise BadBytes("a number has more than ten bytes: the payload is damaged or has another schema")
    if bounds is not None:
        bounds.frombytes(np.column_stack((starts, after)).astype(np.int64).tobytes())
    return int(after[-1])


def read_one_long(data: memoryview, place: int, end: int) -> tuple[int, int]:
    """Return the Avro `long` at offset `place` of `data`, which ends at `end`, and the offset after the `long`. Raises
    BadBytes for a truncated or invalid number.
    """
    if place >= end:
        raise BadBytes("the payload ends within a value, so it is damaged or has another schema")
    byte = data[place]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), place + 1
    value = byte & 0x7F
    shift = 7
    while byte >= 0x80:
        place += 1
        if place >= end:
            raise BadBytes("the payload ends within a number, so it is damaged or has another schema")
        if shift > 63:
            raise BadBytes("a number has more than ten bytes: the payload is damaged or has another schema")
        byte = data[place]
        value |= (byte & 0x7F) << shift
        shift += 7
    value &= 0xFFFFFFFFFFFFFFFF
    return (value >> 1) ^ -(value & 1), place + 1
