"""Interface of the steps between reading an entry and assigning it to a consumer, and the steps that add a column.

The steps are markers, pending transaction acks, delayed delivery, entry filters, key hashes, and chunks. A
subscription has only the steps that its entries and its type need.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from pybroker.dispatch.dispatcher import AssignInput, Dispatcher, ReadPlan
from pybroker.wire import entry_columns

PassOver = Callable[[int, Sequence[int]], None]
"""Acknowledges entries (ledger id, entry ids) that no consumer of the subscription receives."""


class Stage(ABC):
    """One step that removes or defers entries, or adds a column to them."""

    @abstractmethod
    def passed(self, plan: ReadPlan, entries: AssignInput, dispatcher: Dispatcher) -> AssignInput: ...


class KeyHashes(Stage):
    """Adds the hashes of the sticky keys, for types that choose consumers by key."""

    def passed(self, plan: ReadPlan, entries: AssignInput, dispatcher: Dispatcher) -> AssignInput:
        entries.key_hashes = entry_columns.key_hashes(entries.payloads)
        return entries


class Chunks(Stage):
    """Adds the chunks of large messages, for types that send all chunks of a message to one consumer."""

    def passed(self, plan: ReadPlan, entries: AssignInput, dispatcher: Dispatcher) -> AssignInput:
        chunks = entry_columns.chunks(entries.payloads)
        if any(chunks):
            entries.chunks = chunks
        return entries


KEY_HASHES, CHUNKS = KeyHashes(), Chunks()
