"""Key texts of blocked key hashes, from entries in memory.

The dispatcher knows only hashes. The disk is not read; MAX_ENTRIES and MAX_BYTES limit the work per request.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Generator, Iterable, Mapping
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from pybroker.broker.explain.steps import PIECE
from pybroker.model.position import Position
from pybroker.wire.entry_metadata import sticky_key

if TYPE_CHECKING:
    from pybroker.dispatch.views import KeyOrderView
    from pybroker.managed_ledger.managed_ledger import ManagedLedger

MAX_KEYS = 20
"""Maximum number of listed keys per hash."""
MAX_KEY_BYTES = 256
"""Longer keys are truncated."""
MAX_ENTRIES_OF_HASH = 200
"""Maximum number of examined entries per hash."""
MAX_ENTRIES = 2000
"""Maximum number of examined entries per request."""
MAX_BYTES = 32 << 20
"""Maximum size in bytes of the examined entries per request."""


def known_keys(
    ledger: ManagedLedger, key_order: KeyOrderView, held: Mapping[int, Iterable[Position]]
) -> Generator[None, None, dict[int, dict[str, Any]]]:
    """Return the known keys of each hash as JSON, by hash; hashes without a known key are omitted. `held`: some
    unacknowledged positions of each hash.
    """
    found: dict[int, dict[str, Any]] = {}
    entries = size_bytes = 0
    for sticky_hash, of_consumer in held.items():
        keys: dict[bytes, None] = {}
        positions = list(islice(chain(of_consumer, _waiting(key_order, sticky_hash)), MAX_ENTRIES_OF_HASH))
        for position in positions:
            if entries >= MAX_ENTRIES or size_bytes >= MAX_BYTES:
                break
            entries += 1
            payload = _in_memory(ledger, position)
            if payload is not None:
                size_bytes += len(payload)
                keys[sticky_key(payload)] = None
            if not entries % PIECE:
                yield
        if keys:
            found[sticky_hash] = {"keys": [key_evidence(each) for each in islice(keys, MAX_KEYS)]}
            if len(keys) > MAX_KEYS:
                found[sticky_hash]["moreKeys"] = len(keys) - MAX_KEYS
    return found


def _waiting(key_order: KeyOrderView, sticky_hash: int) -> Iterable[Position]:
    listed = key_order.waiting.waiting.get(sticky_hash)
    if listed is not None and listed.parked is not None:
        yield from listed.parked
    if sticky_hash in key_order.parked:
        yield key_order.parked.from_position(sticky_hash)


def _in_memory(ledger: ManagedLedger, position: Position) -> bytes | None:
    if not ledger.ledgers.has_entry(position):
        return None
    run = ledger.read_cached(position, 1, 1)
    return None if run is None else bytes(run.payloads[0])


def key_evidence(key: bytes) -> dict[str, Any]:
    """Return the key as JSON: text, or Base64 if it is not UTF-8. A long key is truncated, and `sizeBytes` gives its
    size.
    """
    shown = key[:MAX_KEY_BYTES]
    cut: dict[str, Any] = {}
    if len(key) > MAX_KEY_BYTES:
        cut["sizeBytes"] = len(key)
        while shown and key[len(shown)] & 0xC0 == 0x80:
            shown = shown[:-1]  # Do not cut within a character.
    try:
        return {"key": shown.decode(), **cut}
    except UnicodeDecodeError:
        return {"keyBase64": b64encode(key[:MAX_KEY_BYTES]).decode("ascii"), **cut}
