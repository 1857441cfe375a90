"""Positions between the entries of a topic, and half-open ranges of entries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Place(NamedTuple):
    """A position between entries: before entry `entry_id` of ledger `ledger_id`, which need not exist. Comparable
    within a topic.
    """

    ledger_id: int
    entry_id: int


@dataclass(frozen=True, slots=True)
class EntryRange:
    """The entries from `first_entry_id` to `end_entry_id` (exclusive) of one ledger of the topic or partition `topic`."""

    topic: str
    ledger_id: int
    first_entry_id: int
    end_entry_id: int


class SparsePoint(NamedTuple):
    """An entry of a ledger for which the bytes and messages before it are known, so that a read can begin there."""

    entry_id: int
    bytes_before: int
    messages_before: int
    """-1 if unknown."""


@dataclass(frozen=True, slots=True)
class PlannedLedger:
    """The planned part of one ledger, from `first_entry_id` to `end_entry_id` (exclusive)."""

    ledger_id: int
    first_entry_id: int
    end_entry_id: int
    size_bytes: int
    """Size of the planned entries; an estimate if they are a part of the ledger."""
    message_count: int
    """Messages in the planned entries; -1 if unknown, an estimate if they are a part of the ledger."""
    is_sealed: bool
    points: tuple[SparsePoint, ...] = ()
    """In ascending order, within the planned entries. For a sealed ledger a pure function of its content."""
    hidden: bytes = b""
    """The planned entries that readers never receive, as a portable roaring bitmap; empty if there are none."""


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """The available entries of one topic or partition between two positions, for one read.

    `first` is the position of the oldest available entry. `end` is the position after the last durable entry, or the
    requested end if that is earlier. `ledgers` are in order. `lost` describes lost entries: the requested start is
    before `first`, or the ledgers have gaps.
    """

    topic: str
    start: Place
    end: Place
    first: Place
    ledgers: tuple[PlannedLedger, ...]
    lost: tuple[str, ...] = ()
    """One sentence per gap, with the requested and the available range; empty without losses."""
    is_held_back: bool = False
    """Whether the plan ends before the first message of an open transaction, if the broker reports that."""
