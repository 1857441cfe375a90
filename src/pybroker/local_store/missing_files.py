"""Detection of missing and truncated segment files at a start, by comparison with `checkpoint.db` and the metadata.

The rules, each with the reason why a crash does not violate it:
    an open ledger's file reaches at least to its committed extent  the file is synced before the extent is committed
    a sealed ledger's file ends with its index                      the file is synced before its extent is removed
    a ledger in a topic's metadata exists                           its creation is durable before it is in the metadata
    a closed ledger has the entry count of the metadata             all its entries were durable when it was closed
The last two apply only if the journal was synced. Ledgers with a deletion record in the journal are exempt: their rows
remain until a checkpoint.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pybroker.disk.disk import Disk, DiskFile
from pybroker.ledgers.known_data import MissingData
from pybroker.local_store.checkpoint.checkpoint_table import Facts
from pybroker.local_store.segments.segment_reader import load_sealed
from pybroker.local_store.segments.segment_tail import held_entries
from pybroker.local_store.segments.segment_writer import segment_path
from pybroker.runtime import logs
from pybroker.storage_format.fields import LayoutError
from pybroker.storage_format.segment_layout import (
    EMPTY_EXTENT,
    TRAILER_BYTES,
    LedgerExtent,
    decode_trailer,
    no_publish_time,
)

MAX_TOLD = 10


@dataclass(frozen=True, slots=True)
class MissingEntries:
    """Missing entries of a ledger, from `first_entry_id` up to, not including, `end_entry_id`."""

    ledger_id: int
    first_entry_id: int
    end_entry_id: int | None  # None if the number of stored entries is unknown
    reason: str

    def __str__(self) -> str:
        return f"{self.ledger_id:020d}.ledger {self.reason}"


def require_none(missing: list[MissingEntries]) -> None:
    if missing:
        told = "; ".join(map(str, missing[:MAX_TOLD]))
        more = f"; and {len(missing) - MAX_TOLD} more ledgers" if len(missing) > MAX_TOLD else ""
        raise MissingData(f"entries that the broker has stored are missing from the directory ledgers/: {told}{more}")


class MissingFiles:
    """Compares recorded data with existing files, once for each start."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        named: Mapping[int, int | None],
        sizes: Mapping[int, int],
        first_certain_id: int,
    ) -> None:
        """`directory`: `ledgers/`. `named`: `KnownData.entry_counts`. `sizes`: the sizes of the files in the directory,
        by ledger id.

        `first_certain_id` is `Facts.first_named_ledger_id` of the last run. Lower ids may come from a run without
        journal sync: after a power failure, such a ledger can be missing although the metadata contains it.
        """
        self._disk = disk
        self._directory = directory
        self._named = named
        self._sizes = sizes
        self._first_certain_id = first_certain_id
        self._looked_at: set[int] = set()

    def short_files(self, extents: Mapping[int, LedgerExtent]) -> list[MissingEntries]:
        """Return the missing entries of open ledgers whose segment file is missing or ends before the committed extent.

        Ledgers below the constructor's `first_certain_id` are included only if a topic's metadata lists them. Other
        ledgers below this id may have been deleted by a run without journal sync, which lost the record of the
        deletion.
        """
        missing = []
        for ledger_id, extent in sorted(extents.items()):
            size = self._sizes.get(ledger_id)
            if extent.end_offset <= (size or 0) or not (self._is_certain(ledger_id) or ledger_id in self._named):
                continue
            reason = "is missing" if size is None else f"has {size} bytes of {extent.end_offset}"
            missing.append(MissingEntries(ledger_id, 0, extent.entry_count, f"{reason} ({extent.entry_count} entries)"))
        return missing

    def absent_before_replay(
        self, facts: Facts, extents: Mapping[int, LedgerExtent], *, is_table_last: bool
    ) -> list[MissingEntries]:
        """Return the missing entries that the replay of the journal cannot restore, because their ledgers were created
        before the last checkpoint. Pass them to `check_absent`.

        `is_table_last`: `checkpoint.db` lacks no transaction that `journal.end` records, so that its mark of a clean
        stop can be trusted. If the mark is then set and all segment files are missing, raises MissingData.
        """
        if is_table_last and facts.is_clean and facts.segment_files and not self._sizes:
            raise MissingData(
                f"the directory ledgers/ is empty, although it contained {facts.segment_files} files when the "
                "broker stopped. Restore these files from a backup"
            )
        end_id = max(facts.first_own_ledger_id, *extents, 0)
        self._looked_at = {ledger_id for ledger_id in self._named if ledger_id < end_id}
        return self.missing_without_row(self._looked_at - extents.keys())

    def check_absent(self, absent: Iterable[MissingEntries], deleted: Collection[int]) -> None:
        """Raise MissingData for `absent` (of `absent_before_replay`), without the ledgers that the journal deletes."""
        self._decide([found for found in absent if found.ledger_id not in deleted])

    def check_after_replay(self, extents: Mapping[int, LedgerExtent], deleted: Collection[int]) -> None:
        """Raise MissingData for entries that are still missing after the replay of the journal.

        `deleted`: the ledgers that the replay has deleted with their files. The entries of a ledger that the journal
        deletes are not missing, although outdated metadata may still list the ledger.
        """
        rest = self._named.keys() - self._looked_at - extents.keys() - set(deleted)
        self._decide(self.missing_without_row(rest) + self.missing_with_row(extents))

    def missing_without_row(self, ledger_ids: Collection[int]) -> list[MissingEntries]:
        """Return the missing entries of ledgers whose segment file is missing or truncated. `ledger_ids`: ledgers that
        a topic's metadata lists, and that have no row in `checkpoint.db`.
        """
        missing = []
        for ledger_id in sorted(ledger_ids):
            count = self._named[ledger_id]
            if ledger_id not in self._sizes:
                if count != 0:
                    held = "" if count is None else f" ({count} entries)"
                    missing.append(MissingEntries(ledger_id, 0, count, f"is missing{held}"))
                continue
            with self._disk.open_for_read(segment_path(self._directory, ledger_id)) as file:
                found = _cut_of_sealed(file, ledger_id, count, self._sizes[ledger_id])
            if found is not None:
                missing.append(found)
        return missing

    def missing_with_row(self, extents: Mapping[int, LedgerExtent]) -> list[MissingEntries]:
        return [
            MissingEntries(
                ledger_id,
                extent.entry_count,
                count,
                f"has {extent.entry_count} entries, but {count} according to metadata.db",
            )
            for ledger_id, extent in sorted(extents.items())
            if (count := self._named.get(ledger_id)) is not None and extent.entry_count < count
        ]

    def _decide(self, missing: list[MissingEntries]) -> None:
        require_none([found for found in missing if self._is_certain(found.ledger_id)])
        if missing:
            logs.error("ledgers.entries_missing", ledgers=len(missing), first=str(missing[0]))

    def _is_certain(self, ledger_id: int) -> bool:
        return ledger_id >= self._first_certain_id


def _cut_of_sealed(file: DiskFile, ledger_id: int, count: int | None, size: int) -> MissingEntries | None:
    """Return the entries that are missing at the end of a sealed ledger's file; None if it is complete. Damage
    elsewhere in the file is ignored.
    """
    try:
        decode_trailer(file.read_at(TRAILER_BYTES, max(0, size - TRAILER_BYTES)), size)
    except LayoutError:
        place = load_sealed(file, ledger_id, no_publish_time).place
        extent = place.extent
        is_cut = count is None or extent.entry_count < count or extent.end_offset > size
        if not place.is_end_known and is_cut:
            # The file may end between a block header and the block's last payload.
            held = sum(1 for _ in held_entries(file, EMPTY_EXTENT))
            of = "" if count is None else f" of {count}"
            return MissingEntries(ledger_id, held, count, f"is truncated: it has {held} entries{of}")
    return None
