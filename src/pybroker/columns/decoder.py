"""Decoder of stored entries into Arrow record batches with one row per message.

Entries are scanned in blocks. Columns are built without Python code for each message; only compressed or encrypted
payloads are opened one by one. Memory: the run of entries, the records of one block, the opened payloads of one window
(`max_batch_bytes` plus one entry), and one batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from pybroker.columns.bad_records import BadEntry, BadRecords, CryptoFailureAction, UndecryptableEntry
from pybroker.columns.message_columns import ERROR_COLUMN, METADATA_TYPES, VALUE, metadata_field
from pybroker.columns.payloads import DecoderLimits, Opener
from pybroker.columns.scanner import SCANNER, Scanner, scanned
from pybroker.columns.scanner_layout import MESSAGE, PROPERTY, STATE, Flag, ScanError
from pybroker.columns.window import WANTED_BY, ColumnBuilder, Window
from pybroker.encryption.encryption_errors import CannotDecrypt
from pybroker.wire.compression import DamagedPayload

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from pybroker.columns.entry_run import EntryRun
    from pybroker.columns.scanner_layout import Records
    from pybroker.encryption.payload_encryption import Decryptor

MAX_BLOCK_ENTRIES = 32 * 1024
"""Maximum entries for one scan. Each needs 168 bytes."""
BLOCK_BYTES = 4 * 1024 * 1024
"""Target size of one scan, so that the scanned bytes are still in the processor's cache when they are copied."""
_FIRST_PROPERTIES = 4096
_SPECIAL = int(Flag.ENCRYPTED)
_LEFT_OUT = int(Flag.MARKER | Flag.SKIPPED)


@dataclass(frozen=True, slots=True)
class JoinedMessage:
    """A complete chunked message: its payload, still compressed, and the position of its first chunk."""

    payload: bytes
    first_ledger_id: int
    first_entry_id: int


class ChunkJoiner(Protocol):
    """The interface by which the decoder assembles chunked messages."""

    def add(self, run: EntryRun, number: int, entry: np.void, payload: bytes) -> JoinedMessage | None:
        """Add a chunk: entry `number` of `run`, with the scanned record `entry` and the decrypted `payload`. Chunks
        must be added in the order of entries. Return the message if it is now complete, else None. Raises
        DamagedPayload if the message cannot be assembled.
        """


class NoChunks:
    """A ChunkJoiner that rejects each chunk as a bad record."""

    def add(self, run: EntryRun, number: int, entry: np.void, payload: bytes) -> JoinedMessage | None:
        raise DamagedPayload(
            "the entry is a chunk of a larger message, and a decoder without a ChunkJoiner does not assemble chunks"
        )


@dataclass
class _Block:
    first: int
    entries: Records
    sources: list[Buffer]
    reasons: dict[int, str] = field(default_factory=dict)
    first_chunks: dict[int, tuple[int, int]] = field(default_factory=dict)

    def forget_opened(self) -> None:
        del self.sources[1:]
        self.reasons = {}
        self.first_chunks = {}


class MessageDecoder:
    """Decodes the entries of one topic or partition. Use it in one thread at a time."""

    def __init__(
        self,
        topic: str,
        partition: int,
        columns: Sequence[str],
        *,
        bad_records: BadRecords = BadRecords.FAIL,
        crypto_failure_action: CryptoFailureAction = CryptoFailureAction.FAIL,
        decryptor: Decryptor | None = None,
        limits: DecoderLimits | None = None,
        chunks: ChunkJoiner | None = None,
        scanner: Scanner = SCANNER,
    ) -> None:
        """`partition` is -1 for a topic without partitions. Raises ValueError for an unknown or repeated column."""
        self.topic = topic
        self.partition = partition
        self.schema = schema_of(columns)
        if bad_records is BadRecords.COLUMN and ERROR_COLUMN not in columns:
            raise ValueError(f"badRecords=column needs the column {ERROR_COLUMN} among the requested columns")
        self._columns = tuple(columns)
        self._bad_records = bad_records
        self._crypto_failure_action = crypto_failure_action
        self._limits = limits or DecoderLimits()
        self._opener = Opener(self._limits, decryptor)
        self._chunks: ChunkJoiner = chunks or NoChunks()
        self._scanner = scanner
        self._wanted = 0
        for name in columns:
            self._wanted |= int(WANTED_BY.get(name, 0))
        # Other columns need no opened payloads, except of batches, whose messages must be counted.
        self._opens_all = VALUE in columns or ERROR_COLUMN in columns
        self._messages = np.zeros(self._limits.max_batch_rows, MESSAGE)
        self._properties = np.zeros(_FIRST_PROPERTIES, PROPERTY)

    def decode(self, run: EntryRun) -> Iterator[pa.RecordBatch]:
        """Yield batches of the run's messages, in order. Raises BadEntry for an entry that cannot be decoded or
        decrypted, if the decoder's policy for this case is FAIL.
        """
        for first, stop in _blocks(run):
            entries = scanned(self._scanner, run, first, stop)
            block = _Block(first, entries, [run.data])
            begin = 0
            while begin < len(entries):
                end = self._open(run, block, begin)
                yield from self._batches(run, block, begin, end)
                block.forget_opened()
                begin = end

    # Opened payloads

    def _open(self, run: EntryRun, block: _Block, begin: int) -> int:
        part = block.entries[begin:]
        is_special = (part["compression"] != 0) | (part["chunk_count"] != 0) | ((part["flags"] & _SPECIAL) != 0)
        is_special &= (part["error"] == 0) & ((part["flags"] & _LEFT_OUT) == 0)
        if not self._opens_all:
            is_special &= ((part["flags"] & int(Flag.BATCH | Flag.ENCRYPTED)) != 0) | (part["chunk_count"] != 0)
        open_bytes = 0
        for number in np.flatnonzero(is_special).tolist():
            open_bytes += self._open_entry(run, block, begin + number)
            if open_bytes >= self._limits.max_batch_bytes:
                return begin + int(number) + 1
        return len(block.entries)

    def _open_entry(self, run: EntryRun, block: _Block, number: int) -> int:
        entry = block.entries[number]
        view = memoryview(run.data).cast("B")
        at, size = int(entry["payload_at"]), int(entry["payload_bytes"])
        payload = bytes(view[at : at + size])
        claimed_bytes = int(entry["uncompressed_bytes"])
        try:
            if entry["flags"] & _SPECIAL:
                metadata_at = int(entry["metadata_at"])
                metadata = bytes(view[metadata_at : metadata_at + int(entry["metadata_bytes"])])
                payload = self._opener.decrypted(metadata, payload)
            if entry["chunk_count"]:
                joined = self._chunks.add(run, block.first + number, entry, payload)
                if joined is None:
                    entry["flags"] |= int(Flag.SKIPPED)
                    return 0
                block.first_chunks[number] = joined.first_ledger_id, joined.first_entry_id
                payload = joined.payload
                if self._opens_all:
                    payload = self._opener.uncompressed_chunked(int(entry["compression"]), payload, claimed_bytes)
            else:
                payload = self._opener.uncompressed(int(entry["compression"]), payload, claimed_bytes)
        except CannotDecrypt as error:
            return self._not_decrypted(run, block, number, str(error))
        except DamagedPayload as error:
            entry["error"] = int(ScanError.NOT_OPENED)
            block.reasons[number] = str(error)
            return 0
        entry["payload_source"] = len(block.sources)
        entry["payload_at"] = 0
        entry["payload_bytes"] = len(payload)
        block.sources.append(payload)
        return len(payload)

    def _not_decrypted(self, run: EntryRun, block: _Block, number: int, reason: str) -> int:
        entry = block.entries[number]
        match self._crypto_failure_action:
            case CryptoFailureAction.FAIL:
                entry_id = run.first_entry_id + block.first + number
                raise UndecryptableEntry(self.topic, run.ledger_id, entry_id, -1, reason)
            case CryptoFailureAction.DISCARD:
                entry["flags"] |= int(Flag.SKIPPED)
            case CryptoFailureAction.CONSUME:  # as one message, even if it is a batch
                entry["flags"] &= ~int(Flag.BATCH)
                entry["chunk_count"] = 0
        return 0

    # Messages and columns

    def _batches(self, run: EntryRun, block: _Block, begin: int, end: int) -> Iterator[pa.RecordBatch]:
        entries = block.entries[begin:end]
        state = np.zeros(1, STATE)
        while state[0]["entry"] < len(entries):
            count, property_count = self._scanner.scan_messages(
                block.sources,
                entries,
                self._wanted,
                self._limits.max_batch_bytes,
                state,
                self._messages,
                self._properties,
            )
            if count:
                window = Window(
                    self.topic,
                    self.partition,
                    run.ledger_id,
                    run.first_entry_id + block.first + begin,
                    block.sources,
                    entries,
                    self._messages[:count],
                    self._properties[:property_count],
                    {number - begin: reason for number, reason in block.reasons.items()},
                    {number - begin: place for number, place in block.first_chunks.items()},
                )
                yield self._batch(window)
            elif property_count:
                self._properties = np.zeros(property_count, PROPERTY)

    def _batch(self, window: Window) -> pa.RecordBatch:
        if self._bad_records is BadRecords.FAIL:
            self._refuse_bad(window)
        builder = ColumnBuilder(window, self._scanner)
        arrays = [builder.column(name) for name in self._columns]
        if not arrays:  # only to be counted
            return pa.RecordBatch.from_struct_array(pa.array([{}] * len(window.messages), pa.struct([])))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _refuse_bad(self, window: Window) -> None:
        bad = np.flatnonzero(window.messages["error"])
        if len(bad):
            row = int(bad[0])
            message = window.messages[row]
            entry_id = window.first_entry_id + int(message["entry"])
            reason = window.error_text(row) or ""
            raise BadEntry(self.topic, window.ledger_id, entry_id, int(message["batch_index"]), reason)


def _blocks(run: EntryRun) -> Iterator[tuple[int, int]]:
    ends = np.cumsum(run.lengths)
    first = 0
    while first < run.entry_count:
        before = int(ends[first - 1]) if first else 0
        stop = int(np.searchsorted(ends, before + BLOCK_BYTES, "right"))
        stop = max(first + 1, min(stop, first + MAX_BLOCK_ENTRIES))
        yield first, stop
        first = stop


def schema_of(columns: Sequence[str]) -> pa.Schema:
    fields = []
    for name in columns:
        if name == VALUE:
            fields.append(pa.field(VALUE, pa.binary()))
        elif name == ERROR_COLUMN:
            fields.append(pa.field(ERROR_COLUMN, pa.string()))
        elif name in METADATA_TYPES:
            fields.append(metadata_field(name))
        else:
            known = ", ".join((VALUE, *METADATA_TYPES, ERROR_COLUMN))
            raise ValueError(f"messages have no column {name!r}. Available columns: {known}")
    if len(set(columns)) < len(columns):
        raise ValueError(f"the requested columns {', '.join(columns)} contain the same column twice")
    return pa.schema(fields)
