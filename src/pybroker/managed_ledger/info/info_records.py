"""The interface for storing managed ledger infos: the lists of ledgers and cursors of topics, in the metadata store.

`json_records.py` implements it for ledgers that only this broker reads, `bookkeeper_store` for ledgers that Java
brokers read too. A change names the versions of the stored values that it replaces, so two owners never overwrite each
other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from pybroker.errors import LedgerFenced
from pybroker.managed_ledger.info.managed_ledger_info import ManagedLedgerInfo
from pybroker.managed_ledger.info.stored_documents import StoredManagedLedger

SaveInfo = Callable[[], Awaitable[None]]


class InfoRecord(ABC):
    """The stored managed ledger info at one path, for the owner of the managed ledger, which makes one call at a time."""

    path: str

    @property
    @abstractmethod
    def version(self) -> int:
        """The version of the stored value; NOT_EXISTING if nothing is stored yet."""

    @abstractmethod
    async def store(self, info: ManagedLedgerInfo) -> None:
        """Replace the stored info. Durable on return. Raises StoreError, and LedgerFenced if another owner has changed
        the info.

        After a failed call, the store may contain `info` nevertheless, or receive it later. The next call of `store`
        does not mistake it for a change by another owner.
        """

    @abstractmethod
    async def delete(self) -> None:
        """Delete the stored info. Raises StoreError, and BadVersionError if another owner or an earlier, failed call
        has changed the info.
        """

    def save_with(self, save: SaveInfo) -> None:  # noqa: B027  (a record in one value has no other users)
        """Set the function that stores the owner's present info by calling `store`. A cursor store that keeps its
        cursors in this record calls the function after a change of a cursor. Records without cursors ignore it.
        """


class LoadedInfo(NamedTuple):
    """A managed ledger info and its record. `info` is None if no info is stored."""

    info: ManagedLedgerInfo | None
    record: InfoRecord
    size_bytes: int


class InfoRecords(ABC):
    """The stored managed ledger infos by path. Raises StoreError and its subclasses only."""

    @abstractmethod
    async def load(self, path: str) -> LoadedInfo: ...

    @abstractmethod
    async def exists(self, path: str) -> bool:
        """Return whether a managed ledger info is stored at `path` and not marked as deleted."""

    async def described(self, path: str) -> StoredManagedLedger | None:
        """Return the stored values of a managed ledger, to show them to an operator; None if nothing is stored, or if
        the values are not in Pulsar's layout.
        """
        return None

    @abstractmethod
    async def create(self, path: str, info: ManagedLedgerInfo) -> None:
        """Store `info`, which lists no ledgers, as the first info at `path`. Raises BadVersionError if an info exists."""


def fenced(path: str) -> LedgerFenced:
    return LedgerFenced(
        f"the document {path} was changed by another broker, which owns the topic now; look the topic up again"
    )
