"""The plan of a repair, without IO, and its description. `repair.py` reads and writes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from pybroker.storage_format.segment_layout import LedgerExtent


@dataclass(frozen=True, slots=True)
class JournalRun:
    """Consecutive entries in one journal record."""

    first_entry_id: int
    payloads: list[bytes]
    message_counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """Data to append to a segment file: entries, or `count` lost positions if `payloads` is None."""

    first_entry_id: int
    count: int
    payloads: list[bytes] | None
    message_counts: tuple[int, ...]


@dataclass(slots=True)
class RepairPlan:
    """All changes that a repair makes, and the losses."""

    findings: list[str] = field(default_factory=list)
    rebuilds_table: bool = False
    rebuilds_metadata: bool = False
    takes_mark: bool = False  # replaces the marker file of metadata.db
    takes_journal_end: bool = False
    dropped_documents: list[str] = field(default_factory=list)
    pieces: dict[int, list[Piece]] = field(default_factory=dict)  # by ledger
    extents: dict[int, LedgerExtent] = field(default_factory=dict)  # of unsealed ledgers, before the pieces
    taken_ledgers: dict[int, str] = field(default_factory=dict)  # with the reason
    done: list[str] = field(default_factory=list)  # changes of cursors and transactions
    lost: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)  # missing data, whose loss the user must accept
    certain: list[str] = field(default_factory=list)  # the positions that are certain without it, by topic and cursor

    @property
    def is_needed(self) -> bool:
        return self.rebuilds_table or self.takes_mark or self.takes_journal_end

    def lines(self) -> list[str]:
        lines = [f"found: {finding}" for finding in self.findings]
        if not self.is_needed:
            lines.append("nothing to repair: a broker can start with the directory")
            return lines + [f"lost: {text}" for text in self.lost]
        if self.rebuilds_table:
            lines.append(
                "do: rewrite checkpoint.db from the segment files, the journal and the undamaged rows of checkpoint.db; move the "
                "journal away"
            )
        if self.rebuilds_metadata:
            lines.append("do: rewrite metadata.db with the undamaged values")
        if self.takes_mark or self.rebuilds_metadata:
            lines.append("do: move metadata.end away; the broker creates the file again when it starts")
        if self.takes_journal_end and not self.rebuilds_table:
            lines.append("do: move journal.end away; the broker creates the file again when it starts")
        lines += [f"do: remove the unreadable document {path} from metadata.db" for path in self.dropped_documents]
        for ledger_id, pieces in sorted(self.pieces.items() if self.rebuilds_table else ()):
            count = sum(piece.count for piece in pieces if piece.payloads is not None)
            if count:
                lines.append(f"do: append {count} entries of the journal to ledger {ledger_id}")
        lines += [f"do: {text}" for text in self.done]
        lines += [f"do: move ledger {ledger_id} away: {why}" for ledger_id, why in sorted(self.taken_ledgers.items())]
        lines += [f"lost: {text}" for text in self.lost]
        return lines + [f"certain: {text}" for text in self.certain]


def continue_ledger(held: int, runs: Collection[JournalRun]) -> list[Piece]:
    pieces: list[Piece] = []
    end = held
    for run in sorted(runs, key=lambda run: run.first_entry_id):
        if run.first_entry_id + len(run.payloads) <= end:
            continue
        if run.first_entry_id > end:
            pieces.append(Piece(end, run.first_entry_id - end, None, ()))
            end = run.first_entry_id
        skipped = end - run.first_entry_id
        payloads = run.payloads[skipped:]
        pieces.append(Piece(end, len(payloads), payloads, run.message_counts[skipped:]))
        end += len(payloads)
    return pieces


def span(ledger_id: int, first_id: int, count: int) -> str:
    if count == 1:
        return f"position {ledger_id}:{first_id}"
    return f"positions {ledger_id}:{first_id} to {ledger_id}:{first_id + count - 1}"


def lost_places(topic_of: Mapping[int, str], pieces: Mapping[int, list[Piece]]) -> list[str]:
    """Return a text, with topic and positions, for each range of lost entries in `pieces`. `topic_of`: topics by ledger id."""
    return [
        f"{topic_of.get(ledger_id, 'no topic')}, {span(ledger_id, piece.first_entry_id, piece.count)}: "
        "no file contains these entries"
        for ledger_id, ledger_pieces in sorted(pieces.items())
        for piece in ledger_pieces
        if piece.payloads is None
    ]
