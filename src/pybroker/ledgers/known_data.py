"""The data that a ledger store must have according to the metadata. A start uses it to detect lost files.

The metadata contains the ledgers of every topic, the entry counts of closed ledgers, and a copy of the journal's end
(`StoreMark`). Every metadata transaction that writes other data also updates this copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from pybroker.errors import StoreError

STORE_MARK_VERSION = 1
HOW_TO_REPAIR = "Restore the data directory from a backup, or run `pybroker ledger repair`"
HOW_TO_GO_ON = (
    "Check whether a disk is not mounted, or whether the data directory is an older copy. Restore the missing files from the same "
    "backup. If these files are lost permanently, `pybroker ledger repair` shows which data is certainly complete; with --apply "
    "--accept-loss, it removes the rest, and the broker can start"
)


class MissingData(StoreError):
    """Files of stored data are missing or truncated. The start has changed nothing."""

    def __init__(self, text: str) -> None:
        super().__init__(f"{text}. {HOW_TO_GO_ON}")
        self.what = text


class CopiedDirectory(StoreError):
    """The files are a copy that was made while a broker used them, or after it was killed. The start has changed nothing."""


class StoreMark(msgspec.Struct, frozen=True):
    """The progress of the local store when metadata was written. Each number only rises, so an older mark states less,
    but nothing wrong.
    """

    version: int = STORE_MARK_VERSION
    sequence: int = 0
    """Journal batches with lower sequence numbers were durable."""
    commit: int = 0
    """Durable transactions of `checkpoint.db`."""
    ledger: int = 0
    """Lower ledger ids may have been assigned."""


@dataclass(frozen=True, slots=True)
class KnownData:
    """The data of a store according to the metadata."""

    mark: StoreMark
    entry_counts: Mapping[int, int | None] = field(default_factory=dict)
    """The ledgers that topics' metadata lists, with their entry counts; None for a ledger that was not closed."""
    is_copy: bool = False
    """Whether the files are copies, perhaps of different moments."""


NOTHING_KNOWN = KnownData(StoreMark())


def encode_mark(mark: StoreMark) -> bytes:
    return msgspec.json.encode(mark)


def decode_mark(data: bytes | None) -> StoreMark:
    """Decode a `StoreMark` of the metadata. For None, and for a mark that this version cannot read, return an empty
    mark, by which no loss can be detected.
    """
    if data is None:
        return StoreMark()
    try:
        mark = msgspec.json.decode(data, type=StoreMark)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return StoreMark()
    return mark if mark.version == STORE_MARK_VERSION else StoreMark()
