"""Changes of a ledger's metadata with the expected version, repeated until the change is stored or impossible."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from pybroker.bookkeeper.errors import InvalidMetadata, MetadataConflict, MetadataUnknown
from pybroker.bookkeeper.ledger_metadata import LedgerMetadata, decode_metadata
from pybroker.bookkeeper.metadata_store import LedgerMetadataStore
from pybroker.bookkeeper.options import BookKeeperOptions
from pybroker.runtime.clock import Clock


class VersionedMetadata(NamedTuple):
    """Metadata as read or written, with the version for the next change."""

    metadata: LedgerMetadata
    version: int


Change: TypeAlias = Callable[[LedgerMetadata], LedgerMetadata | None]
"""Returns the metadata to write, or None if the given metadata is already as wanted.

Raises if the change is not possible any more.
"""


async def read_metadata(store: LedgerMetadataStore, ledger_id: int) -> VersionedMetadata:
    """Read and decode the metadata of a ledger. Raises NoSuchLedger, InvalidMetadata, MetadataUnknown."""
    stored = await store.read(ledger_id)
    try:
        return VersionedMetadata(decode_metadata(stored.value), stored.version)
    except InvalidMetadata as error:
        raise InvalidMetadata(f"Ledger {ledger_id} cannot be used. {error}") from error


async def update_metadata(
    store: LedgerMetadataStore,
    ledger_id: int,
    known: VersionedMetadata,
    change: Change,
    options: BookKeeperOptions,
    clock: Clock,
) -> VersionedMetadata:
    """Apply `change` to a ledger's metadata, store the result, and return it. `known`: the metadata as last read.

    If another client changed the metadata, or the outcome of a write is unknown, the metadata is read again and passed
    to `change`, which must return None for metadata that already contains its result. Raises MetadataUnknown after
    `metadata_timeout_ms`, NoSuchLedger, InvalidMetadata, and the errors of `change`.
    """
    deadline_ms = clock.monotonic_ms() + options.metadata_timeout_ms
    while True:
        try:
            wanted = change(known.metadata)
            if wanted is None:
                return known
            return VersionedMetadata(wanted, await store.write(ledger_id, wanted.encode(), known.version))
        except MetadataConflict:
            pass
        except MetadataUnknown:
            await _pause(clock, deadline_ms, options)
        known = await _read_again(store, ledger_id, deadline_ms, options, clock)


async def _read_again(
    store: LedgerMetadataStore, ledger_id: int, deadline_ms: float, options: BookKeeperOptions, clock: Clock
) -> VersionedMetadata:
    while True:
        try:
            return await read_metadata(store, ledger_id)
        except MetadataUnknown:
            await _pause(clock, deadline_ms, options)


async def _pause(clock: Clock, deadline_ms: float, options: BookKeeperOptions) -> None:
    """Wait before the next attempt. Raises the current error after the deadline."""
    if clock.monotonic_ms() >= deadline_ms:
        raise MetadataUnknown(f"The metadata store did not respond within {options.metadata_timeout_ms:g} ms.")
    await asyncio.sleep(options.metadata_retry_ms / 1000)
