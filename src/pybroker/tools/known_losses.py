"""Detection of missing stored data, and the last positions without loss.

The broker does not start with missing data, and a repair requires `--accept-loss`: the files may be on an unmounted
disk or in a newer copy.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from pybroker.errors import StoreError
from pybroker.local_store.missing_files import MissingEntries, MissingFiles
from pybroker.local_store.start_up import segment_sizes
from pybroker.managed_ledger.cursor_state import CursorState
from pybroker.managed_ledger.info.managed_ledger_info import TRANSACTIONS_CURSOR
from pybroker.managed_ledger.ledger_list import LedgerList
from pybroker.model.position import Position
from pybroker.storage_format.segment_layout import EMPTY_EXTENT, LedgerExtent
from pybroker.tools.data_files import DataFiles
from pybroker.tools.repair_cursors import RepairedTopic
from pybroker.tools.repair_plan import Piece
from pybroker.tools.stored_state import Finding, StoredState

NOT_ACCEPTED = (
    "nothing was changed: stored data is missing. Restore the data. If the data is lost permanently, use --apply"
    " --accept-loss: the broker then starts without the data"
)

CursorRecords = Mapping[str, tuple[bytes | None, list[bytes]]]


def missing_ledgers(files: DataFiles, state: StoredState, named: Mapping[int, int | None]) -> list[MissingEntries]:
    """Return the missing entries because of which the broker would not start: entries of the ledgers in `named` and in
    `checkpoint.db`. Call this after the journal was read. `named`: the ledgers in topics' metadata, with their entry
    counts; None if the count is unknown.

    The result is empty if the tables `facts` or `extents` are damaged, because the sealed ledgers are unknown then.
    """
    if not (state.are_facts_known and state.are_extents_known):
        return []
    sizes = segment_sizes(
        {name: (files.directories.ledgers / name).stat().st_size for name in files.segment_names().values()}
    )
    missing = MissingFiles(files.disk, files.directories.ledgers, named, sizes, state.facts.first_named_ledger_id)
    extents = {
        ledger_id: replace(extent, entry_count=extent.entry_count + state.appended.get(ledger_id, 0))
        for ledger_id, extent in state.extents.items()
    }
    without_row = named.keys() - extents.keys() - state.deleted
    found = [*missing.missing_without_row(without_row), *missing.missing_with_row(extents)]
    certain = (each for each in found if each.ledger_id >= state.facts.first_named_ledger_id)
    return [*missing.short_files(state.extents), *certain]


def finding_of(missing: MissingEntries) -> Finding:
    return Finding(f"{missing.ledger_id:020d}.ledger", None, f"ledger {missing.ledger_id}", missing.reason)


def places_of_absent(
    listed: Mapping[int, int], present: Collection[int]
) -> tuple[dict[int, LedgerExtent], dict[int, list[Piece]]]:
    """Return two mappings by ledger id, about the ledgers of a topic that have no segment file. The first has an empty
    extent for each of them, because the broker needs an extent for every ledger. The second has the lost positions of
    each that had entries.

    `listed` has the entry count of each ledger of a topic, `present` the existing ledgers.
    """
    absent = {ledger_id: count for ledger_id, count in listed.items() if ledger_id not in present}
    places = {ledger_id: [Piece(0, count, None, ())] for ledger_id, count in absent.items() if count}
    return dict.fromkeys(absent, EMPTY_EXTENT), places


def certain_lines(
    topics: Mapping[str, RepairedTopic], lost: Mapping[int, list[Piece]], cursors: CursorRecords
) -> list[str]:
    lines = []
    for path, topic in sorted(topics.items()):
        last = _last_entry(topic.ledgers, lost)
        entries = "no entry" if last is None else f"entries up to {last}"
        lines.append(f"{path}: {entries}; later entries are missing")
        for name, cursor in sorted(topic.info.cursors.items()):
            if name == TRANSACTIONS_CURSOR:
                continue
            snapshot, deltas = cursors.get(cursor.id, (None, []))
            try:
                state = CursorState.restore(topic.ledgers, Position(*cursor.position), snapshot, deltas)
            except StoreError as error:
                lines.append(f"{path}, {name!r}: no acknowledgement ({error})")
                continue
            behind = sum(len(part.deleted) for part in state.acknowledged_behind())
            more = f" and of {behind} entries after this position" if behind else ""
            lines.append(f"{path}, {name!r}: acknowledgements up to {state.mark_delete_position}{more}")
    return lines


def _last_entry(ledgers: LedgerList, lost: Mapping[int, list[Piece]]) -> Position | None:
    """Return the last entry that a file contains, even if earlier ones are missing."""
    for row in reversed(ledgers.rows()):
        end = row.entry_count
        for piece in reversed(lost.get(row.ledger_id, [])):
            if piece.payloads is not None or piece.first_entry_id + piece.count != end:
                break
            end = piece.first_entry_id
        if end:
            return Position(row.ledger_id, end - 1)
    return None
