"""`pybroker ledger list`: the ledgers of a BookKeeper cluster, filtered by state and properties."""

from __future__ import annotations

from collections.abc import Mapping

from pybroker.bookkeeper import LedgerMetadata, LedgerState
from pybroker.bookkeeper.errors import InvalidMetadata
from pybroker.tools.items import Item
from pybroker.tools.ledgers_on_bookkeeper.connecting import EXIT_FOUND, EXIT_OK, LedgerTool


async def list_ledgers(tool: LedgerTool, state: str | None, properties: Mapping[str, str]) -> int:
    """Print the ledgers with this state (None: any) and all these properties, by ascending id. Return the exit code,
    which reports damage for unreadable metadata.
    """
    exit_code = EXIT_OK
    async for page in tool.client.ledger_pages():
        async for ledger_id, found in tool.client.metadata_of_all(page):
            if isinstance(found, InvalidMetadata):
                tool.write({"kind": "damage", "ledger": ledger_id, "text": str(found)})
                exit_code = EXIT_FOUND
            elif (state is None or found.state.name == state) and properties.items() <= property_texts(found).items():
                tool.write(ledger_item(ledger_id, found))
    return exit_code


def ledger_item(ledger_id: int, metadata: LedgerMetadata) -> Item:
    quorums = metadata.quorums
    is_closed = metadata.state is LedgerState.CLOSED
    return {
        "kind": "ledger",
        "ledger": ledger_id,
        "state": metadata.state.name,
        "entries": metadata.last_entry_id + 1 if is_closed else None,
        "size_bytes": metadata.length_bytes if is_closed else None,
        "ensemble_size": quorums.ensemble_size,
        "write_quorum": quorums.write_quorum,
        "ack_quorum": quorums.ack_quorum,
        "digest": metadata.digest_type.name,
        "created_ms": metadata.created_ms,
        "properties": property_texts(metadata),
        "segments": [
            {"first_entry": each.first_entry_id, "bookies": list(each.ensemble)} for each in metadata.segments
        ],
    }


def property_texts(metadata: LedgerMetadata) -> dict[str, str]:
    return {key: value.decode(errors="backslashreplace") for key, value in metadata.custom.items()}
