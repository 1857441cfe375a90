"""The directories of journal and ledgers, and the checkpoint's database."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class StoreDirectories:
    """The paths of a store's files, below its directory."""

    ledgers: Path
    journal: Path
    table: Path

    @classmethod
    def below(cls, directory: Path) -> StoreDirectories:
        return cls(directory / "ledgers", directory / "journal", directory / "checkpoint.db")
