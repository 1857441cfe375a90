"""What happened in a run, as the clients saw it: one list of plain events, which the judge reads.

Each event says who saw it, what it was and when by the run's virtual time. Names of what happened are the constants below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

ASKED = "asked"  # link, request_id, command, of (id of a producer or consumer), place (topic and subscription); None for none
ANSWERED = "answered"  # link, request_id, answer, error, is_last (False: told that it waits for exclusive access)
LINKED = "linked"  # link
UNLINKED = "unlinked"  # link, why: "cut" by the actor or by nature, "ended" by the broker
SENT = "sent"  # topic, producer, session, sequence_id, values, key, delay_s, is_whole
RECEIPTED = "receipted"  # topic, producer, session, sequence_id, values, position
DUPLICATE = "duplicate"  # as RECEIPTED: a receipt that says that it was stored before
SEND_REFUSED = "send_refused"  # topic, producer, session, sequence_id, values, error
ATTACHED = "attached"  # topic, subscription, kind, consumer, durable
DETACHED = "detached"  # topic, subscription, consumer, why
GOT = "got"  # topic, subscription, consumer, position, values, key, redeliveries, chunk
ACKED = "acked"  # topic, subscription, consumer, request_id, positions, up_to, parts
ACK_STORED = "ack_stored"  # the same, and error
NACKED = "nacked"  # topic, subscription, consumer, positions (None: all)
REFUSED = "refused"  # topic, slot, subscription (None for a producer), error
WAITED = "waited"  # topic, slot: a producer that still waits for exclusive access after a long time
ACTIVE = "active"  # topic, subscription, consumer, is_active
DISTURBING = "disturbing"  # token, topic, subscription or None, how
DISTURBED = "disturbed"  # token
FAULT = "fault"  # how, is_begin
HTTP = "http"  # method, path, status, body
BROKEN = "broken"  # what: a promise that is broken by one frame alone


class Event(NamedTuple):
    """One thing that happened; `index` is its place on the tape."""

    index: int
    at_s: float
    actor: str
    what: str
    facts: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.facts[name]
        except KeyError:
            raise AttributeError(name) from None

    def __str__(self) -> str:
        return f"{self.at_s:9.4f} {self.actor} {self.what} " + " ".join(f"{k}={v}" for k, v in self.facts.items())


class Tape:
    """Append-only. `tell` hears of every event as well, in the order in which they come."""

    def __init__(self, now_s: Callable[[], float], tell: Callable[..., None] | None = None) -> None:
        self.events: list[Event] = []
        self._now_s = now_s
        self._tell = tell

    def note(self, actor: str, what: str, **facts: Any) -> Event:
        event = Event(len(self.events), self._now_s(), actor, what, facts)
        self.events.append(event)
        if self._tell is not None:
            self._tell(actor, what, **facts)
        return event

    def of(self, *whats: str) -> Iterator[Event]:
        """Events of these kinds, in order."""
        return (event for event in self.events if event.what in whats)
