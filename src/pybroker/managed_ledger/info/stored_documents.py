"""The documents of a managed ledger and its cursors as they are stored in Pulsar's layout, for display to operators.
Pure.
"""

from __future__ import annotations

from typing import NamedTuple

from pybroker.model.position import Position


class StoredLedger(NamedTuple):
    """One ledger of the list. An open ledger has no counts."""

    ledger_id: int
    entries: int | None
    size_bytes: int | None
    changed_ms: int


class StoredCursor(NamedTuple):
    """The document of a cursor. `deleted`: ranges with an exclusive start. `numbers`: properties of the position."""

    version: int
    created_ms: int
    changed_ms: int
    ledger_id: int
    mark: Position
    deleted: list[tuple[Position, Position]]
    numbers: dict[str, int]


class StoredManagedLedger(NamedTuple):
    """The document of a managed ledger, with its cursors by their encoded names."""

    version: int
    created_ms: int
    changed_ms: int
    ledgers: list[StoredLedger]
    terminated: Position | None
    cursors: dict[str, StoredCursor]
    properties: dict[str, str]
