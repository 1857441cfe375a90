"""Descriptions of Pulsar's metadata documents for operators. Pure."""

from __future__ import annotations

from base64 import b64encode

from pybroker.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from pybroker.bookkeeper_store.documents.ml_data_formats_pb2 import ManagedCursorInfo
from pybroker.bookkeeper_store.documents.ml_data_formats_pb2 import ManagedLedgerInfo as PulsarInfo
from pybroker.managed_ledger.info.stored_documents import StoredCursor, StoredLedger, StoredManagedLedger
from pybroker.model.position import Position


def stored_managed_ledger(
    info: PulsarInfo, version: int, times_ms: tuple[int, int], cursors: dict[str, StoredCursor]
) -> StoredManagedLedger:
    """Return the description of a managed ledger's document. `times_ms`: when the document was created and last
    changed, in milliseconds since 1970.
    """
    terminated = info.terminated_position if info.HasField("terminated_position") else None
    return StoredManagedLedger(
        version,
        *times_ms,
        [
            StoredLedger(
                row.ledger_id,
                row.entries if row.HasField("entries") else None,
                row.size if row.HasField("size") else None,
                row.timestamp,
            )
            for row in info.ledger_info
        ],
        None if terminated is None else Position(terminated.ledger_id, terminated.entry_id),
        cursors,
        {each.key: each.value for each in info.properties},
    )


def metadata_text(metadata: LedgerMetadata) -> str:
    """Return the metadata of a ledger in the text form of BookKeeper's Java client."""
    quorums = metadata.quorums
    closed = (
        f" length={metadata.length_bytes}, lastEntryId={metadata.last_entry_id},"
        if metadata.state is LedgerState.CLOSED
        else ""
    )
    ensembles = ", ".join(f"{each.first_entry_id}=[{', '.join(each.ensemble)}]" for each in metadata.segments)
    custom = ", ".join(f"{key}=base64:{b64encode(value).decode()}" for key, value in metadata.custom.items())
    return (
        f"LedgerMetadata{{formatVersion=3, ensembleSize={quorums.ensemble_size}, writeQuorumSize={quorums.write_quorum},"
        f" ackQuorumSize={quorums.ack_quorum}, state={metadata.state.name},{closed} digestType={metadata.digest_type.name},"
        f" password=OMITTED, ensembles={{{ensembles}}}, customMetadata={{{custom}}}}}"
    )


def stored_cursor(info: ManagedCursorInfo, version: int, times_ms: tuple[int, int]) -> StoredCursor:
    return StoredCursor(
        version,
        *times_ms,
        info.cursors_ledger_id,
        Position(info.mark_delete_ledger_id, info.mark_delete_entry_id),
        [
            (
                Position(each.lower_endpoint.ledger_id, each.lower_endpoint.entry_id),
                Position(each.upper_endpoint.ledger_id, each.upper_endpoint.entry_id),
            )
            for each in info.individual_deleted_messages
        ],
        {each.name: each.value for each in info.properties},
    )
