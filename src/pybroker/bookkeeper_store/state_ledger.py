"""A BookKeeper ledger with the successive states of one cursor or record, written by one owner."""

from __future__ import annotations

from collections.abc import Mapping

from pybroker.bookkeeper import BookKeeperClient, BookKeeperError, LedgerWriter
from pybroker.bookkeeper.errors import NoSuchLedger
from pybroker.bookkeeper_store.store_errors import read_error, store_error
from pybroker.runtime import logs

_READ_BYTES = 1 << 20
_READ_ENTRIES = 1000


class StateLedger:
    """An open ledger. After an error it accepts no more states; its owner continues in a new ledger."""

    def __init__(self, client: BookKeeperClient, writer: LedgerWriter) -> None:
        self._client = client
        self._writer = writer
        self.is_named = False
        """Whether a document lists the ledger, so that the next owner finds the states."""

    @classmethod
    async def create(cls, client: BookKeeperClient, custom: Mapping[str, bytes]) -> StateLedger:
        try:
            return cls(client, await client.create_ledger(custom))
        except BookKeeperError as error:
            raise store_error(error) from error

    @property
    def ledger_id(self) -> int:
        return self._writer.ledger_id

    @property
    def entry_count(self) -> int:
        return self._writer.last_confirmed + 1

    @property
    def size_bytes(self) -> int:
        return self._writer.confirmed_length_bytes

    async def add(self, payload: bytes) -> None:
        """Append a state, and return when it is durable. After a StoreError, the owner must use a new ledger."""
        try:
            await self._writer.add(payload)
        except BookKeeperError as error:
            raise store_error(error) from error

    async def seal(self) -> None:
        try:
            await self._client.close_ledger(self._writer)
        except BookKeeperError as error:
            raise store_error(error) from error


async def read_last(client: BookKeeperClient, ledger_id: int) -> bytes | None:
    """Fence and close the ledger, and return its last entry, the newest state; None without entries. Raises StoreError."""
    try:
        reader = await client.recover_ledger(ledger_id)
        last = reader.last_readable
        return None if last < 0 else (await reader.read_entry(last)).payload
    except NoSuchLedger as error:
        raise store_error(error) from error
    except BookKeeperError as error:
        raise read_error(error, ledger_id, -1) from error


async def read_all(client: BookKeeperClient, ledger_id: int) -> list[bytes]:
    """Fence and close the ledger, and return all its entries. Raises StoreError."""
    entries: list[bytes] = []
    try:
        reader = await client.recover_ledger(ledger_id)
        while len(entries) <= reader.last_readable:
            entries += [each.payload for each in await reader.read(len(entries), _READ_ENTRIES, _READ_BYTES)]
    except BookKeeperError as error:
        raise read_error(error, ledger_id, len(entries)) from error
    return entries


async def delete_ledger(client: BookKeeperClient, ledger_id: int) -> None:
    """Delete a ledger that no document lists any more. A failure is logged; the ledger then only wastes space."""
    try:
        await client.delete_ledger(ledger_id)
    except BookKeeperError as error:
        logs.warning("cursor_ledger.delete_failed", ledger_id=ledger_id, error=str(error))
