"""Read access to the locked data directory of a stopped broker.

Databases are opened as copies, because SQLite changes a database when it opens it after a crash. Journal and segment
files are only read.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pybroker.disk.disk import Disk
from pybroker.errors import StoreError
from pybroker.ledgers.known_data import NOTHING_KNOWN, KnownData, decode_mark
from pybroker.local_store.data_directory import DataDirectoryInUse, DataDirectoryLock
from pybroker.local_store.journal.journal_files import JOURNAL_SUFFIX, parse_journal_file_name
from pybroker.local_store.segments.segment_writer import parse_segment_name
from pybroker.local_store.start_up import describe_files
from pybroker.local_store.store_directories import StoreDirectories
from pybroker.managed_ledger.info.managed_ledger_info import ManagedLedgerInfo, decode_info
from pybroker.managed_ledger.ledger_list import LedgerList
from pybroker.managed_ledger.orphaned_ledgers import managed_ledger_documents, named_entry_counts
from pybroker.metadata.metadata_paths import JOURNAL_MARK
from pybroker.metadata.sqlite_metadata_store import SqliteMetadataStore

METADATA_FILE = "metadata.db"
METADATA_MARK = "metadata.end"
LOG_SUFFIX = "-wal"


class NotUsable(Exception):
    """A tool cannot use the directory. The text is one line for the operator."""


@dataclass(frozen=True, slots=True)
class TopicLedgers:
    """A topic's managed ledger info."""

    path: str
    info: ManagedLedgerInfo
    ledgers: LedgerList


class DataFiles:
    """The files of a data directory. `copies` is the directory with copies of the databases."""

    def __init__(self, directory: Path, copies: Path) -> None:
        self.directories = StoreDirectories.below(directory)
        self.disk = Disk()
        self._directory = directory
        self._copies = copies

    def journal_names(self) -> dict[int, str]:
        return _by_number(self.directories.journal, parse_journal_file_name)

    def what_is_there(self) -> str:
        """Describe the files of the ledger store, except for `checkpoint.db`; empty if there are none."""
        journal = self.directories.journal
        names = [path.name for path in journal.iterdir()] if journal.is_dir() else []
        return describe_files(len(self.segment_names()), sum(name.endswith(JOURNAL_SUFFIX) for name in names))

    def segment_names(self) -> dict[int, str]:
        return _by_number(self.directories.ledgers, parse_segment_name)

    def open_database(self, name: str) -> sqlite3.Connection:
        return sqlite3.connect(self._copies / name, isolation_level=None)

    def copy_of(self, name: str) -> Path:
        return self._copies / name

    def told(self, error: StoreError) -> str:
        """Return the error's text with the name of the original database instead of its copy."""
        return str(error).replace(str(self._copies), str(self._directory))

    def content_of(self, name: str) -> bytes:
        path = self._directory / name
        return path.read_bytes() if path.exists() else b""

    def log_of(self, name: str) -> bytes:
        return self.content_of(name + LOG_SUFFIX)

    def has(self, name: str) -> bool:
        return (self._directory / name).exists()

    def known_data(self) -> KnownData:
        """Return the ledgers and cursors in the metadata; none if the metadata is missing or damaged, which `verify`
        reports separately.
        """
        if not self.has(METADATA_FILE):
            return NOTHING_KNOWN
        try:
            return asyncio.run(_load_known_data(self._copies / METADATA_FILE))
        except StoreError:
            return NOTHING_KNOWN

    def load_topics(self) -> tuple[list[TopicLedgers], list[tuple[str, str]]]:
        topics: list[TopicLedgers] = []
        failures: list[tuple[str, str]] = []
        for path, value in asyncio.run(_load_values(self._copies / METADATA_FILE)):
            try:
                info = decode_info(path, value)
                topics.append(TopicLedgers(path, info, LedgerList.decode(bytes(info.ledgers), 0)))
            except StoreError as error:
                failures.append((path, str(error)))
        return topics, failures


@contextmanager
def opened(directory: Path) -> Iterator[DataFiles]:
    try:
        lock = DataDirectoryLock(directory, is_only_looked_at=True)
    except DataDirectoryInUse as error:
        raise NotUsable(str(error)) from None
    except OSError as error:
        raise NotUsable(f"the directory {directory} is not a data directory: {error.strerror or error}") from error
    try:
        directories = StoreDirectories.below(directory)
        table = directories.table
        if not table.exists() and not any(_has_files(path) for path in (directories.ledgers, directories.journal)):
            raise NotUsable(
                f"the directory {directory} contains no {table.name}: this directory was not used by a broker with "
                "ledgerStore=local"
            )
        with tempfile.TemporaryDirectory(prefix="pybroker-") as copies:
            try:
                for name in (table.name, METADATA_FILE):
                    for suffix in ("", LOG_SUFFIX):
                        if (directory / (name + suffix)).exists():
                            shutil.copyfile(directory / (name + suffix), Path(copies) / (name + suffix))
                if (directory / METADATA_MARK).exists():
                    shutil.copyfile(directory / METADATA_MARK, Path(copies) / METADATA_MARK)
            except OSError as error:
                raise NotUsable(
                    f"the directory {directory} cannot be examined: its databases cannot be copied to a temporary directory "
                    f"({error})"
                ) from error
            yield DataFiles(directory, Path(copies))
    finally:
        lock.release()


def _has_files(directory: Path) -> bool:
    return directory.is_dir() and any(directory.iterdir())


def _by_number(directory: Path, parse: Callable[[str], int | None]) -> dict[int, str]:
    names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
    return dict(sorted((number, name) for name in names if (number := parse(name)) is not None))


async def _load_known_data(path: Path) -> KnownData:
    store = await SqliteMetadataStore.open(path, mark=path.with_name(METADATA_MARK))
    try:
        found = await store.get(JOURNAL_MARK)
        return KnownData(decode_mark(None if found is None else found.value), await named_entry_counts(store))
    finally:
        await store.close()


async def _load_values(path: Path) -> list[tuple[str, bytes]]:
    store = await SqliteMetadataStore.open(path, mark=path.with_name(METADATA_MARK))
    try:
        return [document async for document in managed_ledger_documents(store)]
    finally:
        await store.close()
