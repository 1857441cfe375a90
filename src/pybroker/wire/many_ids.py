"""Incremental decoder of ACK and REDELIVER commands with many message ids.

Other connections are served between its steps. The command is scanned twice: first its fields, which may be in any
order, then the ids, which are returned in slices of `SLICE_IDS`. Each slice is a smaller command, and the last one has
the request id. Of a cumulative ACK only the last id is returned, because the others have no effect.

Limits: a step scans at most `SLICE_STEPS` fields or words; only the command and one slice are in memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from pybroker.errors import ProtocolViolation
from pybroker.model.events import Ack, PartialAck, Redeliver
from pybroker.model.txn_id import TxnId
from pybroker.wire.varint import decode, skip_field

SLICE_IDS = 500
SLICE_STEPS = 2000
_CONSUMER_ID_TAG = 1 << 3
_ACK_TYPE_TAG = 2 << 3
_ACK_IDS_TAG = 3 << 3 | 2
_VALIDATION_ERROR_TAG = 4 << 3
_TXN_LEAST_TAG = 6 << 3
_TXN_MOST_TAG = 7 << 3
_REQUEST_ID_TAG = 8 << 3
_REDELIVER_IDS_TAG = 2 << 3 | 2
_EPOCH_TAG = 3 << 3
_LEDGER_ID_TAG = 1 << 3
_ENTRY_ID_TAG = 2 << 3
_WORD_TAG = 5 << 3
_WORDS_TAG = 5 << 3 | 2
_BATCH_SIZE_TAG = 6 << 3
_INT32_MAX = (1 << 31) - 1

Slice = Ack | Redeliver | None
"""None: no result yet, but other connections should be served."""
NO_MORE = object()
"""Returned after the last slice."""


class ManyIds:
    """The fields of CommandAck or CommandRedeliverUnacknowledgedMessages in `data[start:end]`."""

    __slots__ = ("_data", "_end", "_max_words", "_start", "_steps", "command")

    def __init__(self, command: str, data: bytes, start: int, end: int, max_words: int) -> None:
        """`command` is ACK or REDELIVER. Further words of an ack set than `max_words` are ignored: no batch has more
        messages.
        """
        self.command = command
        self._data = data
        self._start = start
        self._end = end
        self._max_words = max_words
        self._steps = 0

    def slices(self) -> Iterator[Slice]:
        """Yield the command as smaller commands. Raises ProtocolViolation for invalid data."""
        return self._acks() if self.command == "ACK" else self._redeliveries()

    def _is_over(self) -> bool:
        """Count a unit of work. Return whether other connections should be served now."""
        self._steps += 1
        if self._steps < SLICE_STEPS:
            return False
        self._steps = 0
        return True

    # --- the commands ------------------------------------------------------------------------------------------------

    def _acks(self) -> Iterator[Slice]:
        whole = Ack(-1)
        ack_type = -1
        last_id = -1
        txn_least = txn_most = 0
        pos = self._start
        while pos < self._end:
            tag_at = pos
            tag, pos = decode(self._data, pos, self._end)
            if tag == _ACK_IDS_TAG:
                last_id = tag_at
                pos = skip_field(self._data, tag, pos, self._end)
            elif tag == _CONSUMER_ID_TAG:
                whole.consumer_id, pos = decode(self._data, pos, self._end)
            elif tag == _ACK_TYPE_TAG:
                ack_type, pos = decode(self._data, pos, self._end)
            elif tag == _VALIDATION_ERROR_TAG:
                whole.validation_error, pos = decode(self._data, pos, self._end)
            elif tag == _REQUEST_ID_TAG:
                whole.request_id, pos = decode(self._data, pos, self._end)
            elif tag == _TXN_LEAST_TAG:
                txn_least, pos = decode(self._data, pos, self._end)
            elif tag == _TXN_MOST_TAG:
                txn_most, pos = decode(self._data, pos, self._end)
            else:
                pos = skip_field(self._data, tag, pos, self._end)
            if self._is_over():
                yield None
        if whole.consumer_id < 0 or ack_type not in (0, 1):
            raise ProtocolViolation("the client sent an ACK command without consumer id or type")
        whole.is_cumulative = ack_type == 1
        if txn_least or txn_most:
            whole.txn = TxnId(txn_most, txn_least)
        first_id = last_id if whole.is_cumulative and last_id >= 0 else self._start
        part = _part_of(whole)
        count = 0
        for found in self._ids(_ACK_IDS_TAG, first_id):
            if found is None:
                yield None
                continue
            _add(part, found)
            count += 1
            if count >= SLICE_IDS and whole.txn is None:  # acks of a transaction are accepted or refused as a whole
                yield part
                part, count = _part_of(whole), 0
        part.request_id = whole.request_id
        yield part

    def _redeliveries(self) -> Iterator[Slice]:
        consumer_id = epoch = -1
        pos = self._start
        while pos < self._end:
            tag, pos = decode(self._data, pos, self._end)
            if tag == _CONSUMER_ID_TAG:
                consumer_id, pos = decode(self._data, pos, self._end)
            elif tag == _EPOCH_TAG:
                epoch, pos = decode(self._data, pos, self._end)
            else:
                pos = skip_field(self._data, tag, pos, self._end)
            if self._is_over():
                yield None
        if consumer_id < 0:
            raise ProtocolViolation("the client sent a REDELIVER command without consumer id")
        part = Redeliver(consumer_id, epoch)
        has_ids = False
        for found in self._ids(_REDELIVER_IDS_TAG, self._start):
            if found is None:
                yield None
                continue
            has_ids = True
            part.positions.append((found.ledger_id, found.entry_id))
            if len(part.positions) == SLICE_IDS:
                yield part
                part = Redeliver(consumer_id, epoch)
        if part.positions or not has_ids:  # without ids it requests everything
            yield part

    # --- ids ---------------------------------------------------------------------------------------------------------

    def _ids(self, ids_tag: int, pos: int) -> Iterator[PartialAck | None]:
        while pos < self._end:
            tag, pos = decode(self._data, pos, self._end)
            if tag == ids_tag:
                size, pos = decode(self._data, pos, self._end)
                if pos + size > self._end:
                    raise ProtocolViolation(
                        f"the client sent a damaged {self.command} command, which ends within a message id"
                    )
                found = PartialAck(-1, -1, [], 0)
                for _ in self._read_id(found, pos, pos + size):
                    yield None
                if found.ledger_id < 0 or found.entry_id < 0:
                    raise ProtocolViolation("the client sent a message id without ledger id or entry id")
                pos += size
                yield found
            else:
                pos = skip_field(self._data, tag, pos, self._end)
            if self._is_over():
                yield None

    def _read_id(self, found: PartialAck, pos: int, end: int) -> Iterator[None]:
        data, words = self._data, found.ack_set
        while pos < end:
            tag, pos = decode(data, pos, end)
            if tag == _LEDGER_ID_TAG:
                found.ledger_id, pos = decode(data, pos, end)
            elif tag == _ENTRY_ID_TAG:
                found.entry_id, pos = decode(data, pos, end)
            elif tag == _WORD_TAG:
                word, pos = decode(data, pos, end)
                if len(words) < self._max_words:
                    words.append(word)
            elif tag == _WORDS_TAG:
                size, pos = decode(data, pos, end)
                words_end = pos + size
                if words_end > end:
                    raise ProtocolViolation("the client sent a message id that ends within its ack set")
                while pos < words_end and len(words) < self._max_words:
                    word, pos = decode(data, pos, words_end)
                    words.append(word)
                    if self._is_over():
                        yield
                pos = words_end
            elif tag == _BATCH_SIZE_TAG:
                size, pos = decode(data, pos, end)
                size &= 0xFFFF_FFFF
                found.batch_size = size if size <= _INT32_MAX else 0  # negative sizes count as absent
            else:
                pos = skip_field(data, tag, pos, end)
            if self._is_over():
                yield


def _part_of(whole: Ack) -> Ack:
    part = Ack(whole.consumer_id)
    part.is_cumulative = whole.is_cumulative
    part.validation_error = whole.validation_error
    part.txn = whole.txn
    return part


def _add(ack: Ack, found: PartialAck) -> None:
    if found.ack_set:
        ack.partials.append(found)
    elif ack.groups and ack.groups[-1][0] == found.ledger_id:
        ack.groups[-1][1].append(found.entry_id)
    else:
        ack.groups.append((found.ledger_id, [found.entry_id]))
