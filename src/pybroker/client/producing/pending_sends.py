"""Entries of one producer without a response, which are sent again after a reconnection. Pure.

Receipts arrive in the order of the entries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from pybroker.model.txn_id import TxnId


@dataclass(slots=True, eq=False)
class PendingSend:
    """An entry without a response. `token` is any object that the owner of the queue attaches to the entry."""

    sequence_id: int
    highest_sequence_id: int
    message_count: int
    data: bytes
    is_chunk: bool
    token: object
    sent_at_s: float
    txn: TxnId | None = None


class PendingSends:
    """A queue with limits of entries and bytes. An empty queue accepts an entry of any size.

    Invariant: `size_bytes` is the sum of the sizes of all queued entries.
    """

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: deque[PendingSend] = deque()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[PendingSend]:
        return iter(self._entries)

    def has_room(self, size_bytes: int) -> bool:
        if not self._entries:
            return True
        return len(self._entries) < self._max_entries and self.size_bytes + size_bytes <= self._max_bytes

    def add(self, entry: PendingSend) -> None:
        self._entries.append(entry)
        self.size_bytes += len(entry.data)

    @property
    def oldest(self) -> PendingSend | None:
        return self._entries[0] if self._entries else None

    def receipted(self, sequence_id: int) -> PendingSend | None:
        """Remove and return the entry of a receipt. Return None if the entry was already answered, for example over the
        previous connection. Raises ValueError if the receipt of an earlier entry is missing.
        """
        entry = self.oldest
        if entry is None or sequence_id < entry.sequence_id:
            return None
        if sequence_id != entry.sequence_id:
            raise ValueError(
                f"the broker sent a receipt for the message with sequence id {sequence_id}, but no receipt for the earlier message "
                f"with sequence id {entry.sequence_id}"
            )
        self._entries.popleft()
        self.size_bytes -= len(entry.data)
        return entry

    def find(self, sequence_id: int) -> PendingSend | None:
        return next((each for each in self._entries if each.sequence_id == sequence_id), None)

    def give_up(self, entry: PendingSend) -> None:
        """Remove an entry that the broker rejected. The rejection may arrive before the receipts of earlier entries."""
        self._entries.remove(entry)
        self.size_bytes -= len(entry.data)

    def give_up_in_transactions(self) -> list[PendingSend]:
        given_up = [each for each in self._entries if each.txn is not None]
        if given_up:
            self._entries = deque(each for each in self._entries if each.txn is None)
            self.size_bytes = sum(len(each.data) for each in self._entries)
        return given_up

    def give_up_sent_by(self, time_s: float) -> list[PendingSend]:
        """Remove and return the entries that were sent at `time_s` or earlier, with the other chunks of their messages.

        All chunks of a message have the same sequence id. If some stayed in the queue, the late receipt of a removed
        chunk would be taken for the receipt of a remaining one.
        """
        given_up: list[PendingSend] = []
        while self._entries:
            entry = self._entries[0]
            if entry.sent_at_s > time_s and not (given_up and given_up[-1].sequence_id == entry.sequence_id):
                break
            given_up.append(self._entries.popleft())
            self.size_bytes -= len(entry.data)
        return given_up

    def clear(self) -> list[PendingSend]:
        given_up = [*self._entries]
        self._entries.clear()
        self.size_bytes = 0
        return given_up
