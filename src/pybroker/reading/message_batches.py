"""Reader that returns the messages of entry ranges as Arrow record batches, for all transports."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa

from pybroker.columns.bad_records import BadRecords, CryptoFailureAction
from pybroker.columns.decoder import MessageDecoder, schema_of
from pybroker.columns.message_columns import DEFAULT_COLUMNS, VALUE
from pybroker.columns.payloads import DecoderLimits, Opener
from pybroker.columns.scanner import IS_COMPILED, SCANNER, Scanner
from pybroker.encryption.payload_encryption import Decryptor, PrivateKeyFiles
from pybroker.model.names import TopicName
from pybroker.reading.entry_source import ReadingFailed
from pybroker.reading.range_chunks import RangeChunks
from pybroker.runtime import logs

if TYPE_CHECKING:
    from pybroker.columns.entry_run import EntryRun
    from pybroker.encryption.payload_encryption import PrivateKeys
    from pybroker.reading.entry_source import EntrySource
    from pybroker.reading.positions import EntryRange


@dataclass(frozen=True)
class MessageReading:
    """The columns of messages, and the policies for messages that cannot be read. Can be pickled."""

    columns: tuple[str, ...] = (VALUE, *DEFAULT_COLUMNS)
    bad_records: BadRecords = BadRecords.FAIL
    crypto_failure_action: CryptoFailureAction = CryptoFailureAction.FAIL
    private_keys: PrivateKeyFiles | PrivateKeys | None = None
    limits: DecoderLimits = field(default_factory=DecoderLimits)

    @property
    def schema(self) -> pa.Schema:
        return schema_of(self.columns)


class MessageReader:
    """Reads ranges of entries from one source as messages. Use it in one thread at a time."""

    def __init__(self, source: EntrySource, reading: MessageReading, *, scanner: Scanner = SCANNER) -> None:
        if scanner is SCANNER:
            _say_whether_compiled()
        self.schema = reading.schema
        self._source = source
        self._reading = reading
        self._scanner = scanner
        self._decryptor = Decryptor(reading.private_keys) if reading.private_keys is not None else None

    def read(self, entries: EntryRange) -> Iterator[pa.RecordBatch]:
        """Yield the messages of exactly these entries, in order, in batches of limited rows and bytes. A chunked message
        belongs to the entry of its last chunk, even if its first chunk is before the range.

        Raises DataLoss if an entry is lost, BadEntry if an entry cannot be decoded or decrypted and the
        option for this case is FAIL, ReadingFailed for other errors.
        """
        return self._merged(self._batches(entries))

    def _batches(self, entries: EntryRange) -> Iterator[pa.RecordBatch]:
        reading = self._reading
        opener = Opener(reading.limits, self._decryptor)
        chunks = RangeChunks(self._source, entries, reading.limits, opener, self._scanner)
        decoder = MessageDecoder(
            entries.topic,
            TopicName.parse(entries.topic).partition_index,
            reading.columns,
            bad_records=reading.bad_records,
            crypto_failure_action=reading.crypto_failure_action,
            decryptor=self._decryptor,
            limits=reading.limits,
            chunks=chunks,
            scanner=self._scanner,
        )
        next_entry_id = entries.first_entry_id
        runs = self._source.read(entries)
        try:
            for run in runs:
                _check_place(run, entries, next_entry_id, may_be_later=self._source.leaves_out_entries)
                yield from decoder.decode(run)
                chunks.run_is_over(run)
                next_entry_id = run.end_entry_id
        finally:
            if isinstance(runs, Generator):  # returns a connection now, and not when an error's traceback is freed
                runs.close()
        if self._source.leaves_out_entries:
            return
        if next_entry_id != entries.end_entry_id and entries.end_entry_id > entries.first_entry_id:
            raise ReadingFailed(
                f"topic {entries.topic}: only entries of ledger {entries.ledger_id} up to entry {next_entry_id} "
                f"could be read, but entries up to {entries.end_entry_id} were requested: read again"
            )

    def _merged(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Merge small batches, because each batch costs the receiver some tenths of a millisecond."""
        limits = self._reading.limits
        waiting: list[pa.RecordBatch] = []
        row_count = size_bytes = 0
        for batch in batches:
            batch_bytes = batch.nbytes
            if row_count + batch.num_rows > limits.max_batch_rows or size_bytes + batch_bytes > limits.max_batch_bytes:
                yield from _together(waiting)
                waiting, row_count, size_bytes = [], 0, 0
            waiting.append(batch)
            row_count += batch.num_rows
            size_bytes += batch_bytes
        yield from _together(waiting)


def _together(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    return [pa.concat_batches(batches)] if len(batches) > 1 else batches


def _check_place(run: EntryRun, entries: EntryRange, next_entry_id: int, *, may_be_later: bool) -> None:
    is_next = run.first_entry_id == next_entry_id or (may_be_later and run.first_entry_id > next_entry_id)
    is_next = is_next and run.ledger_id == entries.ledger_id
    if not is_next or run.end_entry_id > entries.end_entry_id:
        raise ReadingFailed(
            f"topic {entries.topic}: the broker sent the entries {run.ledger_id}:{run.first_entry_id} to "
            f"{run.end_entry_id}, but the entries of ledger {entries.ledger_id} from {next_entry_id} to "
            f"{entries.end_entry_id} were requested"
        )


@cache
def _say_whether_compiled() -> None:
    if not IS_COMPILED:
        logs.info(
            "scanner.not_compiled",
            hint="entries are decoded in pure Python, which is slow: reinstall pybroker with a C compiler",
        )
