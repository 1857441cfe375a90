"""Packing of rows into batch payloads through protobuf. The compiled packer must produce identical bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.wire import pulsar_api_pb2 as pb

if TYPE_CHECKING:
    from pybroker.columns.packed_columns import PackedColumns


def pack(columns: PackedColumns, start: int, end: int, max_bytes: int, first_sequence_id: int, /) -> tuple[bytes, int]:
    """Return the batch payload of the rows from `start` on, and the index after its last row.

    Each row is `size(4) SingleMessageMetadata payload`. The batch has at least one row; it ends at `end` (exclusive),
    or when the next row would exceed `max_bytes`. Row i has the sequence id `first_sequence_id` + i - `start`.
    """
    if not 0 <= start < end <= len(columns[0]) - 1:
        raise ValueError("rows outside of the columns")
    parts: list[bytes] = []
    size_bytes = 0
    row = start
    while row < end:
        part = _row(columns, row, first_sequence_id + row - start)
        if parts and size_bytes + len(part) > max_bytes:
            break
        parts.append(part)
        size_bytes += len(part)
        row += 1
    return b"".join(parts), row


def _row(columns: PackedColumns, row: int, sequence_id: int) -> bytes:
    (
        value_offsets, value_data, value_valid,
        key_offsets, key_data, key_valid, key_is_base64,
        ordering_offsets, ordering_data, ordering_valid,
        event_times, event_valid,
        property_offsets, property_valid, name_offsets, name_data, text_offsets, text_data,
    ) = columns  # fmt: skip
    metadata = pb.SingleMessageMetadata()
    if property_offsets is not None and (property_valid is None or property_valid[row]):
        for item in range(property_offsets[row], property_offsets[row + 1]):
            metadata.properties.add(
                key=bytes(name_data[name_offsets[item] : name_offsets[item + 1]]).decode(),
                value=bytes(text_data[text_offsets[item] : text_offsets[item + 1]]).decode(),
            )
    if key_offsets is not None and (key_valid is None or key_valid[row]):
        metadata.partition_key = bytes(key_data[key_offsets[row] : key_offsets[row + 1]]).decode()
        if key_is_base64 is not None and key_is_base64[row]:
            metadata.partition_key_b64_encoded = True
    if event_times is not None and (event_valid is None or event_valid[row]):
        metadata.event_time = int(event_times[row])
    if ordering_offsets is not None and (ordering_valid is None or ordering_valid[row]):
        metadata.ordering_key = bytes(ordering_data[ordering_offsets[row] : ordering_offsets[row + 1]])
    metadata.sequence_id = sequence_id
    value = b""
    if value_valid is None or value_valid[row]:
        value = bytes(value_data[value_offsets[row] : value_offsets[row + 1]])
    else:
        metadata.null_value = True
    metadata.payload_size = len(value)
    header = metadata.SerializeToString()
    return len(header).to_bytes(4, "big") + header + value
