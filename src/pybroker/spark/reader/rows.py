"""The columns of a read: available columns, and columns that the query declares."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

import pyarrow as pa

from pybroker.columns.bad_records import BadRecords, CryptoFailureAction, MissingFields
from pybroker.columns.message_columns import DEFAULT_COLUMNS, ERROR_COLUMN, METADATA_TYPES, metadata_field
from pybroker.columns.payloads import DecoderLimits
from pybroker.columns.values.value_decoder import ValueMode, fields_of
from pybroker.columns.values.value_schema import SchemaInfo
from pybroker.encryption.payload_encryption import PrivateKeyFiles
from pybroker.model.names import TopicName
from pybroker.reading.entry_source import EntrySource
from pybroker.reading.typed import TypedReading, typed_reading, union_of_topics
from pybroker.spark.option_text import InvalidOptions
from pybroker.spark.reader.reader_options import ALL_COLUMNS, ReadOptions


def pinned_schema(source: EntrySource, topics: Sequence[str], options: ReadOptions) -> SchemaInfo | None:
    if options.value_mode == "raw":
        return None
    names = dict.fromkeys(str(TopicName.parse(topic).partitioned_name) for topic in topics)
    schemas = {name: source.schema(name) for name in names}
    return union_of_topics(schemas, allow_different=options.allows_different_schemas)


def offered_columns(schema: SchemaInfo | None, options: ReadOptions) -> pa.Schema:
    """Return the columns of a query that declares no columns. Raises InvalidOptions if the option `includeColumns`
    names an unknown metadata column.
    """
    payload = {each.name: each for each in fields_of(schema, _value_mode(options))}
    metadata = {name: metadata_field(name) for name in METADATA_TYPES}
    if options.bad_records == BadRecords.COLUMN.value:
        metadata[ERROR_COLUMN] = pa.field(ERROR_COLUMN, pa.string())
    default = [*payload, *DEFAULT_COLUMNS, *([ERROR_COLUMN] if ERROR_COLUMN in metadata else [])]
    chosen: dict[str, pa.Field] = {}
    known = {**metadata, **payload}
    for name in options.columns:
        for each in default if name == ALL_COLUMNS else [name]:
            if each not in known:
                near = get_close_matches(each, known, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
                raise InvalidOptions(f"option includeColumns contains {each!r}, which is not a metadata column: {hint}")
            chosen[each] = known[each]
    return pa.schema(list(chosen.values()))


def reading_of(schema: SchemaInfo | None, columns: pa.Schema, options: ReadOptions) -> TypedReading:
    """Return the decoder settings with which tasks produce exactly `columns`. Raises WrongColumns for columns that the
    topics do not have.
    """
    key_file = options.crypto_private_key_file
    return typed_reading(
        schema,
        columns,
        value_mode=_value_mode(options),
        bad_records=BadRecords(options.bad_records),
        missing_fields=MissingFields(options.missing_fields),
        crypto_failure_action=CryptoFailureAction(options.crypto_failure_action),
        private_keys=None if key_file is None else PrivateKeyFiles(key_file),
        limits=DecoderLimits(max_batch_bytes=options.batch_bytes),
    )


def _value_mode(options: ReadOptions) -> ValueMode:
    return "raw" if options.value_mode == "raw" else "auto"
