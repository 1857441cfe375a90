"""The vectors of `tests/vectors/stored_entries.json`: stored entries and what a parser must find in them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VECTORS = Path(__file__).resolve().parents[1] / "vectors" / "stored_entries.json"
UNREADABLE = frozenset({"metadata_too_long", "malformed_metadata"})
"""Errors of entries whose metadata cannot be read."""
BATCH_ERRORS = frozenset({"too_many_messages", "batch_too_short", "malformed_batch_metadata"})
"""Errors that every reader of a batch must find."""


@dataclass(frozen=True)
class StoredEntryVector:
    """One vector; `tests/vectors/generate.py` explains the fields."""

    name: str
    entry: bytes
    error: str | None
    broker: dict[str, int | None]
    checksum: str | None
    span: tuple[int, int]
    fields: dict[str, Any]
    payload: bytes | None
    messages: list[dict[str, Any]]

    @property
    def is_readable(self) -> bool:
        """Whether the metadata can be read."""
        return self.error not in UNREADABLE

    @property
    def is_batch(self) -> bool:
        return bool(self.fields) and self.fields["message_count"] is not None

    def __str__(self) -> str:
        return self.name


def _loaded(document: dict[str, Any]) -> StoredEntryVector:
    payload, span = document["payload"], document["metadata"] or (0, 0)
    return StoredEntryVector(
        document["name"],
        bytes.fromhex(document["entry"]),
        document["error"],
        document["broker"] or {},
        document["checksum"],
        (span[0], span[1]),
        document["fields"] or {},
        None if payload is None else bytes.fromhex(payload),
        document["messages"],
    )


ALL = [_loaded(document) for document in json.loads(VECTORS.read_text(encoding="utf-8"))]
READABLE = [each for each in ALL if each.is_readable]
OPEN_BATCHES = [each for each in READABLE if each.is_batch and each.payload is not None]
"""Batches whose payload is known, with and without errors in it."""
