from collections.abc import Sequence

from typing_extensions import Buffer

from pybroker.columns.scanner_layout import Int32s, Int64s, Records

LAYOUT: tuple[int, int, int, int, int]

def scan_entries(data: Buffer, starts: Int64s, lengths: Int64s, entries: Records, /) -> None: ...
def scan_messages(
    sources: Sequence[Buffer],
    entries: Records,
    wanted: int,
    max_bytes: int,
    state: Records,
    messages: Records,
    properties: Records,
    /,
) -> tuple[int, int]: ...
def gather(
    sources: Sequence[Buffer], source: Int32s, at: Int64s, sizes: Int32s, /
) -> tuple[bytes | None, int, bytes, bytes]: ...
def message_ids(
    ledger_id: int, partition: int, entry_ids: Int64s, batch_indexes: Int32s, batch_sizes: Int32s, /
) -> tuple[bytes, bytes]: ...
