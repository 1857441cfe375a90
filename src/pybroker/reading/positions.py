"""Places between the entries of a topic, and half-open ranges of entries: the coordinates of everything that is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Place(NamedTuple):
    """The place in front of entry `entry_id` of ledger `ledger_id`, whether there is such an entry or not; comparable.

    Everything before the place was read, the entry itself was not. Places in one topic order like its entries.
    """

    ledger_id: int
    entry_id: int


@dataclass(frozen=True, slots=True)
class EntryRange:
    """The entries `first_entry_id` up to but not including `end_entry_id` of one ledger of the topic (partition) `topic`."""

    topic: str
    ledger_id: int
    first_entry_id: int
    end_entry_id: int


class SparsePoint(NamedTuple):
    """A place where a ledger can be cut cheaply: what lies before this entry in the ledger."""

    entry_id: int
    bytes_before: int
    messages_before: int
    """-1 where nobody counted."""


@dataclass(frozen=True, slots=True)
class PlannedLedger:
    """What a plan covers of one ledger: `first_entry_id` up to but not including `end_entry_id`."""

    ledger_id: int
    first_entry_id: int
    end_entry_id: int
    size_bytes: int
    """Of the covered entries; an estimate where the ledger is covered in part."""
    message_count: int
    """Of the covered entries; -1 where nobody counted, an estimate where the ledger is covered in part."""
    is_sealed: bool
    points: tuple[SparsePoint, ...] = ()
    """Rising, within the covered entries; pure function of the ledger's content for a sealed one."""
    hidden: bytes = b""
    """Which of the covered entries readers never get, as a roaring bitmap in its portable form; empty for none."""


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """What there is of one topic (partition) between two places, for one read or one look at the end.

    `first` is the place of the oldest entry that is still there, `end` the place after the last durable one (or the asked end,
    if that is before). `ledgers` are in order. Where the asked start lies before `first`, or the ledgers between have gaps,
    entries are lost: see `lost`.
    """

    topic: str
    start: Place
    end: Place
    first: Place
    ledgers: tuple[PlannedLedger, ...]
    lost: tuple[str, ...] = ()
    """One sentence with the asked and the found range for each gap; empty when everything asked for is there."""
    is_held_back: bool = False
    """It ends in front of the first message of an open transaction, as far as the broker tells."""
