"""`pybroker ledger dump --ledger N`: the metadata and entries of one ledger on BookKeeper."""

from __future__ import annotations

from pybroker.bookkeeper import Entry, LedgerReader, LedgerState
from pybroker.bookkeeper.errors import DamagedEntry, EntryUnavailable, NoSuchEntry
from pybroker.errors import ProtocolViolation
from pybroker.tools.items import Item, described_entry
from pybroker.tools.ledgers_on_bookkeeper.connecting import EXIT_FOUND, EXIT_OK, LedgerTool
from pybroker.tools.ledgers_on_bookkeeper.listing import ledger_item
from pybroker.wire.entry_metadata import message_count, metadata_span

_ENTRIES_AT_ONCE = 1000
_BYTES_AT_ONCE = 1 << 20


async def dump_ledger(
    tool: LedgerTool, ledger_id: int, first_entry_id: int, last_entry_id: int | None, *, with_payloads: bool
) -> int:
    """Print a ledger and its entries from the first to the last id. Damaged and missing entries are reported and
    skipped; the dump ends at an entry whose bookies are unavailable. Return the exit code of the command.
    """
    reader = await open_without_recovery(tool, ledger_id)
    tool.write(ledger_item(ledger_id, reader.metadata))
    if reader.metadata.state is not LedgerState.CLOSED:
        tool.write(open_note(ledger_id, reader))
    last = reader.last_readable if last_entry_id is None else min(last_entry_id, reader.last_readable)
    exit_code, next_entry_id = EXIT_OK, first_entry_id
    while next_entry_id <= last:
        try:
            entries = await reader.read(next_entry_id, min(_ENTRIES_AT_ONCE, last + 1 - next_entry_id), _BYTES_AT_ONCE)
        except (DamagedEntry, NoSuchEntry, EntryUnavailable) as error:
            exit_code = EXIT_FOUND
            tool.write({"kind": "damage", "position": f"{ledger_id}:{next_entry_id}", "text": str(error)})
            if isinstance(error, EntryUnavailable):
                tool.write(
                    {
                        "kind": "note",
                        "ledger": ledger_id,
                        "text": "The dump ends here. Start the bookies and repeat the command.",
                    }
                )
                break
            next_entry_id += 1
            continue
        for entry in entries:
            tool.write(_entry_item(ledger_id, entry, with_payload=with_payloads))
        next_entry_id += len(entries)
    return exit_code


async def open_without_recovery(tool: LedgerTool, ledger_id: int) -> LedgerReader:
    """Return a reader of a ledger up to its last confirmed entry. Raises NoSuchLedger, EntryUnavailable and other
    BookKeeperErrors.
    """
    metadata = await tool.client.ledger_metadata(ledger_id)
    reader = await tool.client.open_ledger(ledger_id, metadata.password)
    await reader.read_last_confirmed()
    return reader


def open_note(ledger_id: int, reader: LedgerReader) -> Item:
    return {
        "kind": "note",
        "ledger": ledger_id,
        "text": f"The ledger is {reader.metadata.state.name}: entries after {reader.last_readable} may exist.",
    }


def _entry_item(ledger_id: int, entry: Entry, *, with_payload: bool) -> Item:
    item: Item = {
        "kind": "entry",
        "position": f"{ledger_id}:{entry.entry_id}",
        "size_bytes": len(entry.payload),
        "last_confirmed": entry.last_confirmed,
        "length_bytes": entry.length_bytes,
    }
    if described := described_entry(entry.payload):
        try:
            item["messages"] = message_count(entry.payload, *metadata_span(entry.payload))
        except ProtocolViolation:
            pass  # Bytes of another application that look like an entry of Pulsar.
        else:
            item |= described
    if with_payload:
        item["payload"] = entry.payload.hex()
    return item
