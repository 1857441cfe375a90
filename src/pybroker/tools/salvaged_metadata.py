"""Reads values from the pages of a damaged `metadata.db` without SQLite, and checks whether they are complete.

Older versions of a page are used only for paths without a newer value. Totals in the database prove whether the values
are exactly those of the last commit.
"""

from __future__ import annotations

from pybroker.metadata.sqlite_table import Totals, row_checksum
from pybroker.tools.sqlite_pages import DatabasePages
from pybroker.tools.sqlite_pages import Row as Cells

Row = tuple[str, bytes, int]
"""Path, value and version."""


class SalvagedMetadata:
    """The values in the bytes of `metadata.db` and its write-ahead log."""

    def __init__(self, data: bytes, log: bytes) -> None:
        self._pages = DatabasePages(data, log, lambda cells: _value_of(cells) is not None)
        self._roots = self._pages.roots()
        self.newest: dict[str, Row] = {}
        """Values in the newest version of each page."""
        self.older: dict[str, Row] = {}
        """The last version of values that exist only in older page versions. Some may have been deleted."""
        for cells in self._tree("metadata"):
            if (row := _value_of(cells)) is not None:
                self.newest[row[0]] = row
        for cells in self._pages.every_row():
            row = _value_of(cells)
            if row is not None and row[0] not in self.newest:
                before = self.older.get(row[0])
                self.older[row[0]] = row if before is None or before[2] < row[2] else before
        self.totals = next((found for cells in self._tree("totals") if (found := _totals_of(cells))), None)
        """The totals of the last commit; None if damaged."""

    def all_values(self, damaged_paths: set[str]) -> dict[str, Row] | None:
        """Return the values of the last commit by path. Return None if they cannot be determined. The caller passes the
        paths with a damaged newest value as `damaged_paths`.
        """
        damaged = {path: row for path, row in self.older.items() if path in damaged_paths}
        for values in (self.newest, self.newest | damaged, self.newest | self.older):
            found = Totals(0 if self.totals is None else self.totals.commits)
            for row in values.values():
                found.added(row_checksum(*row))
            if found == self.totals:
                return values
        return None

    def _tree(self, table: str) -> list[Cells]:
        root = self._roots.get(table)
        return [] if root is None else [cells for cells in self._pages.tree(root) if cells is not None]


def _value_of(cells: Cells) -> Row | None:
    if len(cells) != len(("path", "value", "version", "checksum")):
        return None
    path, value, version, checksum = cells
    if not (isinstance(path, str) and isinstance(value, bytes) and isinstance(version, int)):
        return None
    try:
        return (path, value, version) if checksum == row_checksum(path, value, version) else None
    except UnicodeEncodeError:
        return None


def _totals_of(cells: Cells) -> Totals | None:
    numbers = [each for each in cells if isinstance(each, int)]
    return (
        Totals(*numbers[1:]) if len(numbers) == len(cells) == len(("id", "commits", "row_count", "row_sum")) else None
    )
