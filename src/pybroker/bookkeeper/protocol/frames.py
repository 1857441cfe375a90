"""Frames of BookKeeper's protocol version 2: requests as bytes, and a reader of responses.

A frame is its size (4 bytes) and a body; numbers are big-endian. A response does not contain the number of its request.
Except for batch reads, it is matched by operation, ledger and entry.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, TypeAlias

from pybroker.bookkeeper.errors import InvalidAnswer
from pybroker.wire.core import COMPILED, Core

ADD, READ, BATCH_READ = 1, 2, 7
FENCE, RECOVERY_ADD, HIGH_PRIORITY = 1, 2, 4
LAST_ENTRY = -1
"""The entry id of a read that asks for the last entry that the bookie has."""

_VERSION = 2 << 24
_VERSION_MASK, _OPERATION_SHIFT, _OPERATION_MASK = 0xFF000000, 16, 0xFF
_SIZE = struct.Struct(">I")
_ADD = struct.Struct(">II20s")
_ADD_HEAD = struct.Struct(">I20s")
ADD_HEAD_SIZE = _ADD_HEAD.size
_READ = struct.Struct(">IIqq")
_READ_WITH_KEY = struct.Struct(">IIqq20s")
_BATCH_READ = struct.Struct(">IIqqqiq")
_ANSWER = struct.Struct(">Iiqq")
_unpack_framed_answer = struct.Struct(">IIiqq").unpack_from
_REQUEST_ID = struct.Struct(">q")
ANSWER_SIZE = _ANSWER.size
_FRAMED_ANSWER_SIZE = 4 + ANSWER_SIZE
_ADD_ANSWER_WORD, _READ_ANSWER_WORD = _VERSION | ADD << 16, _VERSION | READ << 16


AnswerFields: TypeAlias = tuple[int, int, int, int, int, bytes]
"""An `Answer`, or a plain tuple of its fields."""


class Answer(NamedTuple):
    """One response of a bookie. `body` is an entry, the entries of a batch, or empty; `request_id` is -1 except for
    batch reads.
    """

    operation: int
    code: int
    ledger_id: int
    entry_id: int
    request_id: int
    body: bytes


def add_head(master_key: bytes) -> bytes:
    """Return the beginning of a request to store an entry, to which flags and the entry are appended."""
    return _ADD_HEAD.pack(_VERSION | ADD << 16, master_key)


def add_request(master_key: bytes, stored: bytes, flags: int = 0) -> bytes:
    """Encode the request to store an entry. `stored`: the entry with its header and digest."""
    return b"".join((_ADD.pack(24 + len(stored), _VERSION | ADD << 16 | flags, master_key), stored))


def read_request(ledger_id: int, entry_id: int, flags: int = 0, master_key: bytes = b"") -> bytes:
    """Encode the request to read an entry. With `FENCE` in `flags`, the bookie also fences the ledger and needs the
    master key.
    """
    word = _VERSION | READ << 16 | flags
    if flags & FENCE:
        return _READ_WITH_KEY.pack(40, word, ledger_id, entry_id, master_key)
    return _READ.pack(20, word, ledger_id, entry_id)


def batch_read_request(ledger_id: int, first_entry_id: int, request_id: int, max_count: int, max_bytes: int) -> bytes:
    word = _VERSION | BATCH_READ << 16
    return _BATCH_READ.pack(40, word, ledger_id, first_entry_id, request_id, max_count, max_bytes)


def batch_entries(body: bytes) -> list[bytes]:
    """Return the stored entries in the body of a response to a batch read. Raises InvalidAnswer."""
    entries = []
    start, end = 0, len(body)
    while start < end:
        if end - start < 4:
            raise InvalidAnswer(
                "The response of a bookie to a batch read is damaged: it ends within the size field of an entry."
            )
        (size,) = _SIZE.unpack_from(body, start)
        if size > end - start - 4:
            raise InvalidAnswer(
                f"The response of a bookie to a batch read is damaged: an entry claims {size} bytes, but only "
                f"{end - start - 4} bytes follow."
            )
        entries.append(body[start + 4 : start + 4 + size])
        start += 4 + size
    return entries


class AnswerReader:
    """Splits the bytes of a connection into responses. After InvalidAnswer the connection must be closed."""

    __slots__ = ("_core", "_max_frame_bytes", "_missing_bytes", "_parts", "_rest")

    def __init__(self, max_frame_bytes: int, compiled: Core | None = COMPILED) -> None:
        self._core = compiled
        self._max_frame_bytes = max_frame_bytes
        self._rest = b""
        self._parts: list[bytes] = []
        self._missing_bytes = 0

    def feed(self, data: bytes) -> list[AnswerFields]:
        """Add received bytes, and return the responses that are complete now. Raises InvalidAnswer."""
        if self._missing_bytes > 0:  # a large frame: joined once, when it is complete
            self._parts.append(data)
            self._missing_bytes -= len(data)
            if self._missing_bytes > 0:
                return []
            data = b"".join(self._parts)
            self._parts.clear()
        elif self._rest:
            data = self._rest + data
        at, end = 0, len(data)
        answers: list[AnswerFields] = []
        if self._core is not None:
            at, answers = self._core.scan_ledger_answers(data, self._max_frame_bytes)
        while end - at >= _FRAMED_ANSWER_SIZE:
            size, word, code, ledger_id, entry_id = _unpack_framed_answer(data, at)
            if size == ANSWER_SIZE and word == _ADD_ANSWER_WORD:
                answers.append(Answer(ADD, code, ledger_id, entry_id, -1, b""))
                at += _FRAMED_ANSWER_SIZE
                continue
            self._check_size(size)
            if end - at - 4 < size:
                break
            behind = at + 4 + size
            if word == _READ_ANSWER_WORD:
                answers.append(Answer(READ, code, ledger_id, entry_id, -1, data[at + _FRAMED_ANSWER_SIZE : behind]))
            else:
                answers.append(_decoded(data[at + 4 : behind]))
            at = behind
        self._keep(data, at)
        return answers

    def _check_size(self, size: int) -> None:
        if not ANSWER_SIZE <= size <= self._max_frame_bytes:
            raise InvalidAnswer(
                f"A frame of {size} bytes arrived from a bookie; the maximum is {self._max_frame_bytes} bytes. Check that "
                "the address belongs to a bookie."
            )

    def _keep(self, data: bytes, at: int) -> None:
        """Keep the incomplete frame at the end. Its size is checked as soon as it is known."""
        self._rest, self._missing_bytes = b"", 0
        rest = data[at:]
        if len(rest) >= 4:
            (size,) = _SIZE.unpack_from(rest)
            self._check_size(size)
            self._missing_bytes = 4 + size - len(rest)
            self._parts.append(rest)
        else:
            self._rest = rest


def _decoded(body: bytes) -> Answer:
    word, code, ledger_id, entry_id = _ANSWER.unpack_from(body)
    operation = word >> _OPERATION_SHIFT & _OPERATION_MASK
    if word & _VERSION_MASK != _VERSION or operation not in {ADD, READ, BATCH_READ}:
        raise InvalidAnswer(
            f"A response of a bookie is not of protocol version 2: its frame has the header {word:#010x}."
        )
    if operation != BATCH_READ:
        return Answer(operation, code, ledger_id, entry_id, -1, body[ANSWER_SIZE:])
    if len(body) < ANSWER_SIZE + 8:
        raise InvalidAnswer("A response of a bookie to a batch read has no request id.")
    (request_id,) = _REQUEST_ID.unpack_from(body, ANSWER_SIZE)
    return Answer(operation, code, ledger_id, entry_id, request_id, body[ANSWER_SIZE + 8 :])
