"""The interface of cursor stores: durable storage of the acknowledgements of subscriptions.

A cursor's state is a snapshot plus the deltas after it, both opaque bytes here (`managed_ledger/cursor_state.py`
encodes them). Deltas are durable in the order in which they are written. The store asks for a new snapshot when it
wants to forget deltas (a checkpoint).

Concurrency: every method is called on the event loop; completions are called on it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from pybroker.errors import StoreError

CursorDone = Callable[[StoreError | None], None]


class CursorOwner(ABC):
    """A cursor whose topic is loaded. The store requests snapshots of the cursor's state from it."""

    @abstractmethod
    def snapshot(self) -> bytes:
        """Return the whole state of the cursor, including every delta that was passed to the store before."""


class CursorLedger(NamedTuple):
    """The ledger to which the states of a cursor are written, and the id of its last entry."""

    ledger_id: int
    last_entry_id: int


NO_CURSOR_LEDGER = CursorLedger(-1, -1)
"""The state of the cursor is elsewhere, and its owner has not written a ledger yet."""


class CursorStore(ABC):
    """Durable cursor records by cursor id. No id is used twice within one data directory."""

    @property
    def needs_whole_states(self) -> bool:
        """Whether each record passed to `append_delta` must contain the whole state of the cursor."""
        return False

    def state_bytes(self, _cursor_id: str) -> int:
        """Return the size in bytes of the stored state of a cursor; 0 if the store does not limit sizes."""
        return 0

    def write_wait_ms(self, _cursor_id: str) -> float | None:
        """Return the milliseconds since the present write of the cursor began; None if none is in progress, or if the
        store does not know. No IO.
        """
        return None

    def ledger_of(self, _cursor_id: str) -> CursorLedger | None:
        """Return the ledger to which the states of a loaded cursor are written; None if this store has no such ledgers.
        No IO.
        """
        return None

    @abstractmethod
    async def load(self, cursor_id: str) -> tuple[bytes | None, list[bytes]]:
        """Return the stored snapshot of a cursor (None without one) and the deltas after it, oldest first."""

    @abstractmethod
    def attach(self, cursor_id: str, owner: CursorOwner) -> None:
        """Register the loaded cursor `owner`, from which the store requests snapshots from now on."""

    @abstractmethod
    async def detach(self, cursor_id: str, *, is_changed: bool = False) -> None:
        """Store a last snapshot if there were deltas since the previous one, and remove the cursor's owner. Unknown ids
        are ignored. `is_changed`: the owner has changes that no delta contains, so that a snapshot is needed. Raises
        StoreError.
        """

    @abstractmethod
    def append_delta(self, cursor_id: str, delta: bytes, done: CursorDone | None) -> None:
        """Store `delta` after the earlier deltas of the cursor. When it is durable, or has failed, `done` is called on
        the event loop with None or the error, never inside this call.
        """

    @abstractmethod
    async def delete(self, cursor_id: str) -> None:
        """Delete the stored state of the cursor durably. Unknown ids are ignored."""
