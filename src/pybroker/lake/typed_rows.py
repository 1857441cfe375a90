"""Typed rows for tables, decoded with the topic schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from pybroker.columns.bad_records import BadRecords, MissingFields
from pybroker.columns.message_columns import ERROR_COLUMN, METADATA_TYPES, metadata_field
from pybroker.columns.values.value_decoder import ValueMode, fields_of
from pybroker.columns.values.value_schema import SchemaInfo
from pybroker.lake.settings import LakeSettings, SettingsRefused
from pybroker.model.names import TopicName
from pybroker.reading.entry_source import EntrySource
from pybroker.reading.idle_sources import IdleSources
from pybroker.reading.lossy_reads import LossyReads
from pybroker.reading.positions import EntryRange
from pybroker.reading.read_options import SourceOptions
from pybroker.reading.typed import TypedReader, TypedReading, typed_reading, union_of_topics

METADATA_COLUMNS = (
    "__key",
    "__topic",
    "__publishTime",
    "__eventTime",
    "__messageProperties",
    "__ledgerId",
    "__entryId",
    "__batchIndex",
    "__producerName",
    "__sequenceId",
)
"""Default metadata columns of a table. They include the columns that identify a message."""
ALL_OF_THE_SCHEMA = "*"
MAX_IDLE_SOURCES = 8
"""Limit per process. The source that is idle for longest is closed."""
_idle = IdleSources(MAX_IDLE_SOURCES)


@dataclass(frozen=True)
class TypedRows:
    """The conversion of entries to typed rows. Opens an entry source in the process that uses it."""

    where: SourceOptions
    reading: TypedReading
    skips_loss: bool = False
    """Whether to continue after damaged or lost entries, which are counted in the log."""

    @property
    def schema(self) -> pa.Schema:
        return self.reading.columns

    def rows(self, entries: Sequence[EntryRange]) -> Iterator[pa.RecordBatch]:
        with _idle.opened(self.where) as own:
            source = LossyReads(own) if self.skips_loss else own
            reader = TypedReader(source, self.reading)
            for part in entries:
                yield from reader.read(part)


def close_idle_sources() -> None:
    _idle.close()


def reading_maker(
    settings: LakeSettings, where: SourceOptions
) -> Callable[[EntrySource, Sequence[str]], tuple[TypedRows, dict[str, str]]]:
    """Return a function that creates the row conversion by the newest schema of the topics, and returns it with the
    column renames: declared renames and Avro aliases.

    Call the function after the ends of the topics are known, so that no row is decoded with a schema older than its
    own.
    """

    def make(source: EntrySource, topics: Sequence[str]) -> tuple[TypedRows, dict[str, str]]:
        names = sorted({str(TopicName.parse(topic).partitioned_name) for topic in topics})
        info = None
        mode: ValueMode = "raw" if settings.value_mode == "raw" else "auto"
        if mode == "auto":
            info = union_of_topics({name: source.schema(name) for name in names})
        reading = typed_reading(
            info,
            _columns(settings, info, mode),
            value_mode=mode,
            bad_records=BadRecords(settings.bad_records),
            missing_fields=MissingFields(settings.missing_fields),
        )
        return TypedRows(where, reading, settings.on_data_loss == "skip"), {**avro_renames(info), **settings.renames}

    return make


def _columns(settings: LakeSettings, info: SchemaInfo | None, mode: ValueMode) -> pa.Schema:
    payload = {field.name: field for field in fields_of(info, mode)}
    names: list[str] = []
    for name in settings.columns or (ALL_OF_THE_SCHEMA, *METADATA_COLUMNS):
        names += list(payload) if name == ALL_OF_THE_SCHEMA else [name]
    if settings.partitioning is not None:
        names.append(settings.partitioning.column)
    if settings.bad_records == "column":
        names.append(ERROR_COLUMN)
    names = list(dict.fromkeys(names))
    unknown = [name for name in names if name not in payload and name not in METADATA_TYPES and name != ERROR_COLUMN]
    if unknown:
        raise SettingsRefused(
            [
                f"--columns: {', '.join(unknown)} does not exist. Available columns: {', '.join([*payload, *METADATA_TYPES])}"
            ]
        )
    return pa.schema(
        [
            payload[name]
            if name in payload
            else pa.field(name, pa.string())
            if name == ERROR_COLUMN
            else metadata_field(name)
            for name in names
        ]
    )


def avro_renames(info: SchemaInfo | None) -> dict[str, str]:
    if info is None or info.type not in ("AVRO", "JSON"):
        return {}
    try:
        fields = json.loads(info.data).get("fields", [])
        return {field["name"]: field["aliases"][0] for field in fields if field.get("aliases")}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return {}  # the decoder reports the damaged schema
