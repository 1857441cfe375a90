from pybroker.columns.packed_columns import PackedColumns

def pack(
    columns: PackedColumns, start: int, end: int, max_bytes: int, first_sequence_id: int, /
) -> tuple[bytes, int]: ...
