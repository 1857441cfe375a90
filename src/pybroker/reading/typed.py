"""Reader that returns ranges of entries as rows: payloads decoded with their schema, and metadata columns.

`TypedReading` describes the rows and is passed to the reading process; `TypedReader` reads. The reading contains the
schema, so schemas that producers register later do not affect it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pybroker.columns.bad_records import BadEntry, BadRecords, CryptoFailureAction, MissingFields
from pybroker.columns.message_columns import DEFAULT_COLUMNS, ERROR_COLUMN, METADATA_TYPES, VALUE, metadata_field
from pybroker.columns.payloads import DecoderLimits
from pybroker.columns.values.declared import WrongColumns, as_declared, check_declared
from pybroker.columns.values.value_decoder import ValueMode, fields_of, value_decoder
from pybroker.columns.values.value_schema import SchemaInfo, ValueDecoder
from pybroker.model.names import TopicName
from pybroker.reading.message_batches import MessageReader, MessageReading

if TYPE_CHECKING:
    from pybroker.encryption.payload_encryption import PrivateKeyFiles, PrivateKeys
    from pybroker.reading.entry_source import EntrySource
    from pybroker.reading.positions import EntryRange

_KEY, _VERSION = "__key", "__schemaVersion"
_PLACE = ("__ledgerId", "__entryId", "__batchIndex")


class DifferentSchemas(ValueError):
    """Topics that are read as one table have different schemas. The text contains two of the topics, and the
    remedies.
    """


@dataclass(frozen=True)
class TypedReading:
    """The columns to return, and the policies for messages that cannot be read. Can be pickled. Created by
    `typed_reading`.
    """

    schema_info: SchemaInfo | None
    columns: pa.Schema
    value_mode: ValueMode = "auto"
    bad_records: BadRecords = BadRecords.FAIL
    missing_fields: MissingFields = MissingFields.FAIL
    crypto_failure_action: CryptoFailureAction = CryptoFailureAction.FAIL
    private_keys: PrivateKeyFiles | PrivateKeys | None = None
    limits: DecoderLimits = field(default_factory=DecoderLimits)


def typed_reading(
    schema_info: SchemaInfo | None,
    columns: pa.Schema | None = None,
    *,
    value_mode: ValueMode = "auto",
    metadata: Sequence[str] = DEFAULT_COLUMNS,
    bad_records: BadRecords = BadRecords.FAIL,
    missing_fields: MissingFields = MissingFields.FAIL,
    crypto_failure_action: CryptoFailureAction = CryptoFailureAction.FAIL,
    private_keys: PrivateKeyFiles | PrivateKeys | None = None,
    limits: DecoderLimits | None = None,
) -> TypedReading:
    """Create a validated `TypedReading`. Without `columns` it has all payload columns and the `metadata` columns;
    otherwise it has exactly `columns`, which may be payload columns and any metadata columns.

    Raises WrongColumns if one of `columns` is unknown, repeated, or of another type than in the topic, and
    UnreadableSchema for a schema that cannot be represented as columns.
    """
    payload = fields_of(schema_info, value_mode)
    if columns is None:
        columns = pa.schema([*payload, *(metadata_field(name) for name in metadata)])
        if bad_records is BadRecords.COLUMN:
            columns = columns.append(pa.field(ERROR_COLUMN, pa.string()))
    else:
        available = [*payload, *(metadata_field(name) for name in METADATA_TYPES)]
        if bad_records is BadRecords.COLUMN:
            available.append(pa.field(ERROR_COLUMN, pa.string()))
        elif ERROR_COLUMN in columns.names:
            raise WrongColumns(f"the column {ERROR_COLUMN} exists only with badRecords=column")
        check_declared(columns, available)
    return TypedReading(
        schema_info,
        columns,
        value_mode,
        bad_records,
        missing_fields,
        crypto_failure_action,
        private_keys,
        limits or DecoderLimits(),
    )


class TypedReader:
    """Reads ranges of entries of one source as rows. Not thread-safe. Each topic has its own schema versions."""

    def __init__(self, source: EntrySource, reading: TypedReading) -> None:
        self.schema = reading.columns
        self._source = source
        self._reading = reading
        self._wanted = self._wanted_fields()
        self._decoders: dict[str, ValueDecoder] = {}
        self._messages = MessageReader(
            source,
            MessageReading(
                self._message_columns(),
                self._message_policy(),
                reading.crypto_failure_action,
                reading.private_keys,
                reading.limits,
            ),
        )

    def read(self, entries: EntryRange) -> Iterator[pa.RecordBatch]:
        decoder = self._decoder_of(entries.topic) if self._wanted else None
        for messages in self._messages.read(entries):
            yield self._typed(entries.topic, messages, decoder)

    def _wanted_fields(self) -> list[str]:
        payload = [each.name for each in fields_of(self._reading.schema_info, self._reading.value_mode)]
        wanted = [name for name in payload if name in self.schema.names]
        return wanted or (payload if ERROR_COLUMN in self.schema.names else [])

    def _message_columns(self) -> tuple[str, ...]:
        columns = {name: None for name in self.schema.names if name in METADATA_TYPES or name == ERROR_COLUMN}
        if self._wanted:
            columns |= dict.fromkeys((VALUE, _KEY, _VERSION))
        if self._reading.bad_records is BadRecords.FAIL:
            columns |= dict.fromkeys(_PLACE)
        return tuple(columns)

    def _message_policy(self) -> BadRecords:
        policy = self._reading.bad_records
        is_shown = policy is not BadRecords.COLUMN or ERROR_COLUMN in self.schema.names
        return policy if is_shown else BadRecords.NULL

    def _decoder_of(self, partition: str) -> ValueDecoder:
        topic = str(TopicName.parse(partition).partitioned_name)
        decoder = self._decoders.get(topic)
        if decoder is None:

            def schema_of_version(version: bytes) -> SchemaInfo | None:
                return self._source.schema(topic, version)

            reading = self._reading
            decoder = value_decoder(
                reading.schema_info, schema_of_version, reading.value_mode, self._wanted, reading.missing_fields
            )
            self._decoders[topic] = decoder
        return decoder

    def _typed(self, topic: str, messages: pa.RecordBatch, decoder: ValueDecoder | None) -> pa.RecordBatch:
        columns = {name: messages.column(name) for name in messages.schema.names}
        if decoder is not None:
            decoded = decoder.decode(columns.pop(VALUE), columns[_KEY], columns[_VERSION])
            if decoded.errors is not None:
                self._judge(topic, columns, decoded.errors)
            # Only now, because a payload column and a metadata column may both have the name `value`.
            columns |= dict(zip([each.name for each in decoder.fields], decoded.columns, strict=True))
        arrays = [self._declared(topic, columns, each) for each in self.schema]
        if not arrays:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * messages.num_rows, pa.struct([])))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _judge(self, topic: str, columns: dict[str, pa.Array], errors: pa.StringArray) -> None:
        if self._reading.bad_records is BadRecords.FAIL:
            row = int(np.nonzero(np.asarray(errors.is_valid()))[0][0])
            raise self._bad_entry(topic, columns, row, errors[row].as_py())
        if ERROR_COLUMN in columns:
            columns[ERROR_COLUMN] = pc.coalesce(columns[ERROR_COLUMN], errors)

    def _declared(self, topic: str, columns: dict[str, pa.Array], declared: pa.Field) -> pa.Array:
        column = as_declared(columns[declared.name], declared.type)
        if column.null_count and not declared.nullable:
            row = int(np.nonzero(np.asarray(column.is_null()))[0][0])
            reason = f"its {declared.name!r} is null, but the column is declared as not nullable"
            raise self._bad_entry(topic, columns, row, reason)
        return column

    @staticmethod
    def _bad_entry(topic: str, columns: dict[str, pa.Array], row: int, reason: str) -> BadEntry:
        ledger_id, entry_id, batch_index = (columns[name][row].as_py() if name in columns else -1 for name in _PLACE)
        return BadEntry(topic, ledger_id, entry_id, batch_index, reason)


def union_of_topics(schemas: Mapping[str, SchemaInfo | None], *, allow_different: bool = False) -> SchemaInfo | None:
    """Return the common schema of topics that are read as one table; None to read payloads as bytes.

    If the schemas differ, the result is None with `allow_different`, else DifferentSchemas is raised.
    """
    first_topic: str | None = None
    pinned: SchemaInfo | None = None
    for topic, info in schemas.items():
        if first_topic is None:
            first_topic, pinned = topic, info
        elif not _same(pinned, info):
            if allow_different:
                return None
            raise DifferentSchemas(
                f"the topics {first_topic} and {topic} have different schemas ({_named(pinned)} and "
                f"{_named(info)}). Read the topics separately, or read their payloads as bytes with "
                "allowDifferentTopicSchemas=true"
            )
    return pinned


def _same(left: SchemaInfo | None, right: SchemaInfo | None) -> bool:
    if left is None or right is None:
        return _is_bytes(left) and _is_bytes(right)
    if left.type != right.type:
        return _is_bytes(left) and _is_bytes(right)
    return left.data == right.data and _kept(left) == _kept(right)


def _kept(info: SchemaInfo) -> dict[str, str]:
    return {
        key: value for key, value in info.properties.items() if info.type == "KEY_VALUE" or key == "__PARSING_INFO__"
    }


def _is_bytes(info: SchemaInfo | None) -> bool:
    return info is None or info.type in {"BYTES", "NONE"}


def _named(info: SchemaInfo | None) -> str:
    return "none" if info is None else info.type
