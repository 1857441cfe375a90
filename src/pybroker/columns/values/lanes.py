"""Vectorised reading of many payloads in one buffer with numpy. A lane is the read position in one payload.

Invariants for any bytes: no read position is beyond its payload's end. A failed payload is positioned at its end, so
later reads from it are empty and cost nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pybroker.columns.values.buffers import array_of

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

MAX_BAD_REASONS = 64
"""Maximum different reasons for one batch; further failures get a general text."""
_OTHER_REASON = "it cannot be decoded (the batch has too many different reasons to keep)"


class Failures:
    """Reasons why rows of a batch cannot be decoded. The first reason of a row is kept."""

    def __init__(self, row_count: int) -> None:
        self._codes = np.zeros(row_count, dtype=np.int16)
        self._reasons: dict[str, int] = {}
        self.count = 0

    def add(self, rows: Any, reason: str) -> None:
        if reason not in self._reasons:
            if len(self._reasons) >= MAX_BAD_REASONS:
                reason = _OTHER_REASON
            self._reasons.setdefault(reason, len(self._reasons) + 1)
        rows = np.atleast_1d(np.asarray(rows, dtype=np.int64))
        fresh = rows[self._codes[rows] == 0]
        self._codes[fresh] = self._reasons[reason]
        self.count = int(np.count_nonzero(self._codes))

    @property
    def rows(self) -> Mask:
        return self._codes > 0

    def reason(self, row: int) -> str | None:
        code = int(self._codes[row])
        return None if code == 0 else list(self._reasons)[code - 1]

    def texts(self) -> list[str | None]:
        names: list[str | None] = [None, *self._reasons]
        return [names[code] for code in self._codes.tolist()]


class Lanes:
    """One read position for each payload, or for each item of the lists in the payloads.

    Positions increase from lane to lane, and reads of one lane do not reach into the next. `rows` maps lanes to
    payloads for `failures`.
    """

    __slots__ = ("data", "ends", "failures", "places", "rows")

    def __init__(
        self, data: npt.NDArray[np.uint8], places: Numbers, ends: Numbers, rows: Numbers, failures: Failures
    ) -> None:
        self.data = data if len(data) else np.zeros(1, dtype=np.uint8)
        self.places = places
        self.ends = ends
        self.rows = rows
        self.failures = failures

    def __len__(self) -> int:
        return len(self.places)

    def at(self, index: Any) -> Lanes:
        return Lanes(self.data, self.places[index], self.ends[index], self.rows[index], self.failures)

    def put_back(self, index: Any, part: Lanes) -> None:
        self.places[index] = part.places

    def fail(self, lanes: Any, reason: str) -> None:
        self.failures.add(self.rows[lanes], reason)
        self.places[lanes] = self.ends[lanes]

    def read_unsigned_or_zigzag(self) -> npt.NDArray[np.uint64]:
        """Read the next variable-length number of each lane as an unsigned number; 0 for a lane that fails. If the
        number is zigzag-encoded, the caller must decode its sign.
        """
        data, places = self.data, self.places
        first = data.take(places, mode="clip")
        short = places >= self.ends
        if short.any():
            first[short] = 0
            self.fail(short, "the payload ends within a value, so it is damaged or has another schema")
            places = self.places
        value = (first & 0x7F).astype(np.uint64)
        self.places = places = places + ~short
        if first.max(initial=0) < 0x80:
            return value
        longer = np.nonzero(first >= 0x80)[0]
        for shift in range(7, 70, 7):
            spots = places[longer]
            over = spots >= self.ends[longer]
            if over.any():
                self.fail(longer[over], "the payload ends within a number, so it is damaged or has another schema")
                value[longer[over]] = 0
                longer = longer[~over]
                spots = places[longer]
            byte = data.take(spots, mode="clip")
            places[longer] += 1
            value[longer] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            longer = longer[byte >= 0x80]
            if not len(longer):
                break
        if len(longer):
            self.fail(
                longer,
                "a number has more than ten bytes: the payload is damaged or has another schema",
            )
            value[longer] = 0
        return value

    def read_long(self) -> Numbers:
        value = self.read_unsigned_or_zigzag()
        return ((value >> np.uint64(1)) ^ (~(value & np.uint64(1)) + np.uint64(1))).view(np.int64)

    def read_int(self) -> npt.NDArray[np.int32]:
        value = self.read_long()
        narrow = value.astype(np.int32)
        wrong = narrow != value
        if wrong.any():
            self.fail(wrong, "a number does not fit an int of 32 bits")
            narrow[wrong] = 0
        return narrow

    def read_fixed(self, width: int) -> npt.NDArray[np.uint8]:
        """Read the next `width` bytes of each lane. Return a matrix with one row for each lane; zeros for a lane that
        fails.
        """
        short = self.ends - self.places < width
        starts = self.places
        if short.any():
            self.fail(short, "the payload ends within a value, so it is damaged or has another schema")
        taken = self.data.take(starts[:, None] + np.arange(width, dtype=np.int64), mode="clip")
        taken[short] = 0
        self.places = self.places + np.where(short, 0, width)
        return taken

    def read_length(self) -> Numbers:
        length = self.read_long()
        wrong = (length < 0) | (length > self.ends - self.places)
        if wrong.any():
            self.fail(
                wrong,
                "a string or bytes value is longer than the rest of the payload: the payload is damaged or has another schema",
            )
            length[wrong] = 0
        return length

    def read_slices(self, lengths: Numbers) -> pa.BinaryArray:
        starts = self.places
        self.places = starts + lengths
        return slices(self.data, starts, lengths)


def slices(data: npt.NDArray[np.uint8], starts: Numbers, lengths: Numbers) -> pa.BinaryArray:
    """Copy parts of `data` into one Arrow array. The parts must be in ascending order and must not overlap."""
    count = len(starts)
    if not count:
        return pa.Array.from_buffers(pa.binary(), 0, [None, pa.py_buffer(b"\0\0\0\0"), pa.py_buffer(b"")])
    offsets = np.empty(2 * count + 1, dtype=np.int64)
    offsets[0] = 0
    offsets[1::2] = starts
    offsets[2::2] = starts + lengths
    assert offsets[-1] < 2**31, "a binary array holds less than 2 GiB"
    laid = pa.Array.from_buffers(
        pa.binary(), 2 * count, [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    )
    return laid.take(array_of(np.arange(1, 2 * count, 2, dtype=np.int64)))


def lanes_over(values: pa.BinaryArray, rows: Numbers, failures: Failures) -> Lanes:
    """Create a lane for each value. No value may be null. `rows`: the row number of each value, for `failures`."""
    _, offset_buffer, data_buffer = values.buffers()
    offsets = np.frombuffer(offset_buffer, dtype=np.int32, count=len(values) + 1, offset=values.offset * 4)
    data = np.frombuffer(data_buffer, dtype=np.uint8) if data_buffer else np.zeros(1, dtype=np.uint8)
    wide = offsets.astype(np.int64)
    return Lanes(data, wide[:-1].copy(), wide[1:], rows, failures)


def placed(pieces: list[tuple[Any, pa.Array]], count: int, arrow_type: pa.DataType) -> pa.Array:
    """Merge arrays into one array of `count` values. Each piece is a pair: the target rows, and the values of these
    rows. Other rows are null.
    """
    if not pieces:
        return pa.nulls(count, arrow_type)
    where = np.zeros(count, dtype=np.int64)
    missing = np.ones(count, dtype=np.bool_)
    start = 0
    for index, piece in pieces:
        where[index] = np.arange(start, start + len(piece))
        missing[index] = False
        start += len(piece)
    whole = pieces[0][1] if len(pieces) == 1 else pa.concat_arrays([piece for _, piece in pieces])
    return whole.take(array_of(where, missing))
