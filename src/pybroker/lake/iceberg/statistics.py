"""Conversion of Arrow types and of the statistics of Parquet files to Iceberg's form."""

from __future__ import annotations

import pyarrow as pa
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record

from pybroker.lake.table_format import WrittenFile


def data_files(metadata: TableMetadata, files: list[WrittenFile]) -> list[DataFile]:
    schema = metadata.schema()
    plan = compute_statistics_plan(schema, metadata.properties)
    mapping = parquet_path_to_id_mapping(schema)
    scheme = "file://" if metadata.location.startswith("file://") else ""
    result = []
    for file in files:
        statistics = data_file_statistics_from_parquet_metadata(file.footer, plan, mapping)
        result.append(
            DataFile.from_args(
                content=DataFileContent.DATA,
                # With a scheme: a reader looks for a path without one on its default file system, such as HDFS.
                file_path=f"{scheme}{file.location}",
                file_format=FileFormat.PARQUET,
                partition=Record(file.partition) if metadata.spec().fields else Record(),
                file_size_in_bytes=file.size_bytes,
                sort_order_id=None,
                spec_id=metadata.default_spec_id,
                equality_ids=None,
                key_metadata=None,
                **statistics.to_serialized_dict(),
            )
        )
    return result


def storable(schema: pa.Schema) -> pa.Schema:
    """Return the columns with types that Iceberg supports: int for smaller integers, wider types for unsigned integers,
    no nanoseconds.
    """
    return pa.schema([pa.field(field.name, storable_type(field.type), field.nullable) for field in schema])


def storable_type(kind: pa.DataType) -> pa.DataType:
    if kind in (pa.int8(), pa.int16(), pa.uint8(), pa.uint16()):
        return pa.int32()
    if kind == pa.uint32():
        return pa.int64()
    if kind == pa.uint64():
        return pa.decimal128(20, 0)
    if kind == pa.float16():
        return pa.float32()
    if pa.types.is_null(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_date64(kind):
        return pa.date32()
    if pa.types.is_time(kind):
        return pa.time64("us")
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if pa.types.is_duration(kind):
        return pa.int64()
    if pa.types.is_dictionary(kind):
        return storable_type(kind.value_type)
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return pa.struct([pa.field(f.name, storable_type(f.type), f.nullable) for f in fields])
    if pa.types.is_map(kind):
        return pa.map_(storable_type(kind.key_type), storable_type(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(pa.field("element", storable_type(kind.value_type), True))
    return kind
