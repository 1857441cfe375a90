"""Pages of lists. Each page contains an opaque text (cursor) with which the next request continues."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from pybroker.model.position import Position

if TYPE_CHECKING:
    from pyroaring import BitMap

    from pybroker.broker.delivery.delayed_delivery import DelayedDelivery
    from pybroker.dispatch.pending_acks import Hold, PendingAcks


T = TypeVar("T")

Steps = Generator[None, None, T]
"""Generator that returns a result. The caller yields to the event loop at each pause."""

DEFAULT_LIMIT, MAX_LIMIT = 100, 1000
"""Number of rows per page."""
ENTRIES_PER_STEP = 500
"""Number of entries that are processed between two pauses; takes less than a millisecond."""


class Place(NamedTuple):
    """End of a page: the last entry, and the index of the last listed message of its batch; -1 if the entry was listed
    completely.
    """

    position: Position
    batch_index: int = -1


START = Place(Position(-1, -1))


class BadCursor(ValueError):
    """The text is not a cursor of this list."""


def cursor_text(kind: str, *values: int) -> str:
    return urlsafe_b64encode(msgspec.json.encode([kind, *values])).decode("ascii").rstrip("=")


def cursor_values(kind: str, text: str, count: int) -> list[int]:
    """Return the `count` numbers that `cursor_text` encoded for the list `kind`. Raises BadCursor."""
    try:
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        found: list[Any] = msgspec.json.decode(data, type=list[str | int])
    except (ValueError, msgspec.DecodeError) as error:
        raise BadCursor(
            f"The page cursor {text[:100]!r} is invalid: use the value of `next` in the previous page"
        ) from error
    if len(found) != count + 1 or found[0] != kind or not all(isinstance(each, int) for each in found[1:]):
        raise BadCursor(f"The page cursor {text[:100]!r} is invalid: use the value of `next` in the previous page")
    return found[1:]


def pieces_of(pending: PendingAcks) -> Iterator[tuple[int, BitMap, Mapping[int, Hold]]]:
    """Yield all unacknowledged entries in ascending order, in slices of one ledger: ledger id, entry ids of the slice,
    and the delivery (`Hold`) of each unacknowledged entry of the ledger, by entry id.

    The caller may yield to the event loop between slices.
    """
    for ledger_id in pending.ledger_ids():
        entry_ids = pending.entries_in(ledger_id)
        for start in range(0, len(entry_ids), ENTRIES_PER_STEP):
            yield ledger_id, entry_ids[start : start + ENTRIES_PER_STEP], pending.holds_in(ledger_id)


def delayed_positions(delayed: DelayedDelivery, after: Position, max_entries: int) -> Steps[list[Position]]:
    found: list[Position] = []
    for ledger_id in delayed.ledger_ids():
        if ledger_id < after.ledger_id or len(found) >= max_entries:
            continue
        yield
        entry_ids = delayed.waiting_in(ledger_id)
        if ledger_id == after.ledger_id:
            entry_ids.remove_range(0, after.entry_id + 1)
        for entry_id in entry_ids[: max_entries - len(found)]:
            found.append(Position(ledger_id, entry_id))
            if len(found) % ENTRIES_PER_STEP == 0:
                yield
    return found
