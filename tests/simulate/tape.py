"""What happened in a run, as the clients saw it: one list of plain events, which the judge reads.

Each event says who saw it, what it was and when by the run's virtual time. Names of what happened are the constants below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

ASKED = "asked"  # link, request_id, command, of (id of a producer or consumer), place (topic and subscription, of who opens)
ANSWERED = "answered"  # link, request_id, answer, error, is_last (False: told that it waits for exclusive access)
LINKED = "linked"  # link
UNLINKED = "unlinked"  # link, why: "cut" by the actor or by nature, "ended" by the broker
SENT = "sent"  # topic, producer, session, sequence_id, values, key, chunk, deliver_at_s, size_bytes, txn
RECEIPTED = "receipted"  # topic, producer, session, sequence_id, values, position
DUPLICATE = "duplicate"  # as RECEIPTED: a receipt that says that it was stored before
TAKEN = "taken"  # as RECEIPTED, of a topic that stores nothing: it has no place
SEND_REFUSED = "send_refused"  # topic, producer, session, sequence_id, values, error
ATTACHED = "attached"  # topic, subscription, kind, consumer, durable
DETACHED = "detached"  # topic, subscription, consumer, why
GOT = "got"  # topic, subscription, consumer, position, values, key, redeliveries, chunk
PASSED = "passed"  # topic, values: a message came for a consumer that had left, or had asked for it again
ACKED = "acked"  # topic, subscription, consumer, txn, and positions, up_to, or part_of, values and is_whole
ACK_STORED = "ack_stored"  # the same, error, and asked (the place of ACKED)
NACKED = "nacked"  # topic, subscription, consumer, positions (None: all)
REFUSED = "refused"  # topic, slot, subscription (None for a producer), error
WAITED = "waited"  # topic, slot: a producer that still waits for exclusive access after a long time
ACTIVE = "active"  # topic, subscription, consumer, is_active
DISTURBING = "disturbing"  # token, topic, subscription or None, how
DISTURBED = "disturbed"  # token
FAULT = "fault"  # how, is_begin
HTTP = "http"  # method, path, status, body
TXN_OPENED = "txn_opened"  # txn (most and least bits), timeout_s, asked_s (when it was asked for)
TXN_ENDING = (
    "txn_ending"  # txn, is_commit: somebody asks for its end; without is_commit: an administrator, for an abort
)
TXN_NOT_ANSWERED = "txn_not_answered"  # the same: the connection was lost
TXN_ENDED = "txn_ended"  # the same, and error
TXN_FORGED = "txn_forged"  # txn, topic, subscription (None: of the topic): somebody says there that it has ended
POLICY_SETTING = "policy_setting"  # token, topic (in the script), policy, value (None: it is removed)
POLICY_SET = "policy_set"  # token, status (0: no answer)
BROKEN = "broken"  # what: a promise that is broken by one frame alone


class Event(NamedTuple):
    """One thing that happened; `index` is its place on the tape."""

    index: int  # type: ignore[assignment]
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

    @property
    def now_s(self) -> float:
        return self._now_s()

    def of(self, *whats: str) -> Iterator[Event]:
        """Events of these kinds, in order."""
        return (event for event in self.events if event.what in whats)
