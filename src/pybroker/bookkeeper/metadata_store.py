"""The interfaces to the metadata of ledgers and to the list of bookies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Mapping
from typing import NamedTuple


class StoredMetadata(NamedTuple):
    """Encoded metadata of a ledger and its version."""

    value: bytes
    version: int


class LedgerMetadataStore(ABC):
    """Metadata of ledgers by id, with versions. Raises BookKeeperError and its subclasses only."""

    @abstractmethod
    async def new_ledger_id(self) -> int:
        """Return a new ledger id, larger than all earlier ones. Ids have gaps. Raises MetadataUnknown."""

    @abstractmethod
    async def create(self, ledger_id: int, value: bytes) -> int:
        """Store the metadata of a new ledger and return its version. Raises LedgerExists, MetadataUnknown."""

    @abstractmethod
    async def read(self, ledger_id: int) -> StoredMetadata:
        """Return the metadata of a ledger. Raises NoSuchLedger, MetadataUnknown."""

    @abstractmethod
    async def write(self, ledger_id: int, value: bytes, version: int) -> int:
        """Replace the metadata of a ledger, and return its new version. Raises MetadataConflict if the present version
        is not `version`; NoSuchLedger; MetadataUnknown if the change may have happened.
        """

    @abstractmethod
    async def delete(self, ledger_id: int) -> None:
        """Delete the metadata of the ledger; bookies free the space of its entries later. The id of a
        missing ledger is ignored. Raises MetadataUnknown if it is unknown whether the metadata were deleted.
        """

    @abstractmethod
    async def list_ledgers(self) -> list[int]:
        """Return the ids of all ledgers of the cluster, ascending. Raises MetadataUnknown."""

    async def ledger_pages(self) -> AsyncIterator[list[int]]:
        """Yield the ids of all ledgers in pages, ascending, so that only one page is in memory. Raises MetadataUnknown."""
        yield await self.list_ledgers()


class BookieAddress(NamedTuple):
    """The host and port on which a bookie listens."""

    host: str
    port: int


class BookieRegistry(ABC):
    """The bookies of the cluster, as last known."""

    @abstractmethod
    def writable(self) -> Mapping[str, BookieAddress]:
        """Return the addresses of the bookies that accept entries, by id."""

    def read_only(self) -> Mapping[str, BookieAddress]:
        return {}

    def members(self) -> Collection[str]:
        """Return the ids of all bookies of the cluster, running or not; empty if that is not known."""
        return ()

    @abstractmethod
    def address_of(self, bookie_id: str) -> BookieAddress | None:
        """Return the address of a bookie, even if it is read-only or has stopped; None if it was never known."""

    @abstractmethod
    async def refresh(self) -> None:
        """Read the list of bookies again. Raises MetadataUnknown."""


def address_in_id(bookie_id: str) -> BookieAddress | None:
    """Return the address in a bookie's id of the form host:port; None for any other id."""
    host, colon, port = bookie_id.rpartition(":")
    return BookieAddress(host, int(port)) if colon and host and port.isascii() and port.isdigit() else None
