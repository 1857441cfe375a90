"""The progress of a copy of one topic.

It is a file below `copies/` of the data directory, replaced atomically after each step. A ledger is recorded when the
target has assigned its id, before its first entry. An interrupted copy of a ledger begins again in a new ledger, and
the incomplete ledger is deleted; complete ledgers are not copied again.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

import msgspec

from pybroker.errors import StoreError

COPIES_DIRECTORY = "copies"
FORMAT_VERSION = 1


class CopiedLedger(msgspec.Struct):
    """A source ledger and its copy. `digest` is the digest of all entries in hexadecimal digits, empty until the copy
    is complete.
    """

    source: int
    target: int
    entries: int = 0
    messages: int = 0
    bytes: int = 0
    digest: str = ""

    @property
    def is_complete(self) -> bool:
        return bool(self.digest)


class CopyProgress(msgspec.Struct):
    """The state of a copy. `is_named`: the target's managed ledger info may contain the copied ledgers."""

    version: int
    target: str
    ledgers: list[CopiedLedger] = []
    compacted: CopiedLedger | None = None
    reserved: dict[int, int] = {}
    """Target ids of trimmed ledgers that occur in positions of compacted entries."""
    is_named: bool = False
    is_complete: bool = False

    def of(self, source_id: int) -> CopiedLedger | None:
        return next((each for each in self.ledgers if each.source == source_id), None)


def progress_path(directory: Path, managed_ledger: str, target_kind: str) -> Path:
    return directory / COPIES_DIRECTORY / f"{quote(managed_ledger, safe='')}.to-{target_kind}.json"


def incomplete_copies(directory: Path, target_kind: str) -> list[Path]:
    """Return the progress files of incomplete copies to a kind of target (`local` or `bookkeeper`). Raises
    StoreError.
    """
    paths = sorted((directory / COPIES_DIRECTORY).glob(f"*.to-{target_kind}.json"))
    return [path for path in paths if not _decoded(path, path.read_bytes()).is_complete]


def _decoded(path: Path, value: bytes) -> CopyProgress:
    try:
        return msgspec.json.decode(value, type=CopyProgress)
    except msgspec.DecodeError as error:
        raise StoreError(
            f"the progress file {path} of an earlier copy is damaged: {error}. Remove the file to copy from the beginning"
        ) from error


class ProgressFile:
    """The progress file of one copy."""

    def __init__(self, path: Path, target: str) -> None:
        """Read the file, or begin a new progress if it does not exist. Raises StoreError for a file of another version
        or target.
        """
        self._path = path
        self.progress = CopyProgress(FORMAT_VERSION, target)
        try:
            found = _decoded(path, path.read_bytes())
        except FileNotFoundError:
            return
        if found.version > FORMAT_VERSION or found.target != target:
            raise StoreError(
                f"the file {path} records the progress of a copy to {found.target}: continue that copy, or remove the file and the"
                " ledgers that it names"
            )
        self.progress = found

    def save(self) -> None:
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        draft = self._path.with_suffix(".new")
        with draft.open("wb") as file:
            file.write(msgspec.json.encode(self.progress))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._path)
        directory = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
