"""Rules of message deduplication by sequence id, for the producers of one topic.

Each producer name has two numbers: the highest sequence id that was passed to the ledger (pushed), and the highest
durable one (persisted). A message above `pushed` is new. A message up to `persisted` is a duplicate. For a message in
between, the result of the earlier attempt is not known yet. A batch covers the range from its first to its highest
sequence id. All chunks of a large message share one id, which counts as pushed with the last chunk.

After a failed message, the producer session accepts no further messages; otherwise the resent message would count as a
duplicate of a later one. The client must reconnect.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from enum import Enum, auto
from itertools import islice
from operator import lt
from typing import NamedTuple

from pybroker.model.events import SendRun
from pybroker.wire.entry_metadata import chunk_of, is_marker

NO_SEQUENCE_ID = -1
"""Last sequence id of a producer without stored messages."""
_MAX_SEQUENCE_ID = (1 << 63) - 1  # Sequence ids are unsigned on the wire, but clients count with signed numbers.
_BELOW_ALL = -(1 << 63) - 1


class Verdict(Enum):
    """Decision whether a message is new or a duplicate."""

    NEW = auto()
    DUPLICATE = auto()
    UNKNOWN = auto()
    """An earlier copy of the message is still being stored. The client must resend the message."""
    BEHIND_FAILURE = auto()
    """An earlier message was not stored. The client must resend both messages."""


class Part:
    """Consecutive messages of a producer with the same verdict.

    `highest`: the sequence id that becomes pushed; None if it does not change (incomplete chunked messages).
    """

    __slots__ = ("highest", "indexes", "verdict")

    def __init__(self, verdict: Verdict, indexes: range | None, highest: int | None) -> None:
        """`indexes`: positions of the messages among those that arrived together; None for all of them."""
        self.verdict = verdict
        self.indexes = indexes
        self.highest = highest


class Accepted:
    """New messages that are being stored. `behind`: duplicates that arrived later. Their receipts must follow the
    receipts of the new messages.
    """

    __slots__ = ("behind", "epoch", "highest", "known", "session")

    def __init__(self, known: _Known, session: object, highest: int | None) -> None:
        self.known = known
        self.session = session
        self.highest = highest
        self.epoch = known.epoch
        self.behind: list[SendRun] = []


class Dropped(NamedTuple):
    """Consecutive duplicates: their number, the last sequence id, and the highest sequence id that had been passed to
    the ledger (`pushed`) when they arrived.
    """

    messages: int
    last_sequence_id: int
    pushed: int


class _Known:
    """State of one producer name.

    `epoch` counts failures: messages that were accepted before the last failure do not change the state when they are
    stored.
    """

    __slots__ = (
        "dropped",
        "epoch",
        "failed_session",
        "in_flight",
        "inactive_since_ms",
        "last_accepted",
        "persisted",
        "pushed",
    )

    def __init__(self) -> None:
        self.pushed = self.persisted = _BELOW_ALL
        self.epoch = 0
        self.in_flight = 0
        self.last_accepted: Accepted | None = None  # None while nothing is in flight
        self.failed_session: object | None = None
        self.inactive_since_ms: float | None = None
        self.dropped: Dropped | None = None


class Deduplication:
    """Deduplication state of all producer names of one topic. `session` identifies one attachment of a producer."""

    def __init__(self) -> None:
        self._names: dict[str, _Known] = {}

    def __len__(self) -> int:
        return len(self._names)

    # --- publishing --------------------------------------------------------------------------------------------------

    def judge(self, name: str, session: object, run: SendRun) -> list[Part]:
        """Decide for each of the messages `run` whether it is new or a duplicate (see `Verdict`). Return the messages
        in order; each part contains consecutive messages with the same verdict.

        Before the next call, the caller must report with `accepted` or `refused` whether the ledger accepted the new
        messages.
        """
        known = self._names.get(name)
        pushed = _BELOW_ALL if known is None else known.pushed
        ids, highs = run.sequence_ids, run.highest_sequence_ids
        is_plain = not (run.chunk_count or run.has_markers)
        if is_plain and ids[0] > pushed and (known is None or known.failed_session is not session):
            ends = list(map(max, ids, highs)) if any(highs) else ids
            if all(map(lt, ends, islice(ids, 1, None))) and ends[-1] <= _MAX_SEQUENCE_ID:
                return [Part(Verdict.NEW, None, ends[-1])]
        return self._judge_each(known, session, run)

    def _judge_each(self, known: _Known | None, session: object, run: SendRun) -> list[Part]:
        if known is not None and known.failed_session is session:
            return [Part(Verdict.BEHIND_FAILURE, None, None)]
        pushed, persisted = (_BELOW_ALL, _BELOW_ALL) if known is None else (known.pushed, known.persisted)
        parts: list[Part] = []
        for index, (first, highest) in enumerate(zip(run.sequence_ids, run.highest_sequence_ids, strict=True)):
            sequence_id = _signed(first)
            pushes: int | None = None
            if run.has_markers and is_marker(run.payloads[index]):
                verdict = Verdict.NEW
            elif sequence_id > pushed:
                verdict = Verdict.NEW
                if not run.chunk_count or completes_message(run.payloads[index]):
                    # 0 means that the highest id was not sent.
                    pushes = pushed = max(sequence_id, _signed(highest)) if highest else sequence_id
            else:
                verdict = Verdict.DUPLICATE if sequence_id <= persisted else Verdict.UNKNOWN
            if parts and parts[-1].verdict is verdict and parts[-1].indexes is not None:
                last = parts[-1]
                assert last.indexes is not None
                last.indexes = range(last.indexes.start, index + 1)
                last.highest = last.highest if pushes is None else pushes
            else:
                parts.append(Part(verdict, range(index, index + 1), pushes))
        return parts

    def offered(self, name: str, session: object, highest: int | None) -> Accepted:
        """Return an object that represents new messages, which the caller now passes to the ledger. Next, the caller
        must pass this object to `accepted` or `refused`. `highest`: highest sequence id of the messages; None if they
        are only chunks of an incomplete message.
        """
        return Accepted(self._known(name), session, highest)

    def accepted(self, accepted: Accepted) -> None:
        known, highest = accepted.known, accepted.highest
        known.last_accepted = accepted
        known.in_flight += 1
        if highest is not None:
            assert highest > known.pushed, "an accepted part must be new"
            known.pushed = highest

    def refused(self, accepted: Accepted) -> None:
        accepted.known.failed_session = accepted.session

    def has_failed(self, name: str, session: object) -> bool:
        """Return whether a message of this session failed, so that the session accepts no further messages."""
        known = self._names.get(name)
        return known is not None and known.failed_session is session

    def last_accepted(self, name: str) -> Accepted | None:
        known = self._names.get(name)
        return None if known is None else known.last_accepted

    def stored(self, accepted: Accepted) -> None:
        known = accepted.known
        self._landed(accepted)
        if accepted.highest is not None and accepted.epoch == known.epoch:
            assert known.persisted < accepted.highest <= known.pushed, "stored out of order"
            known.persisted = accepted.highest

    def failed(self, accepted: Accepted) -> None:
        known = accepted.known
        self._landed(accepted)
        known.pushed = known.persisted
        known.epoch += 1
        known.failed_session = accepted.session

    def _landed(self, accepted: Accepted) -> None:
        known = accepted.known
        known.in_flight -= 1
        assert known.in_flight >= 0, "two results for one message"
        if not known.in_flight:
            known.last_accepted = None

    def _known(self, name: str) -> _Known:
        known = self._names.get(name)
        if known is None:
            known = self._names[name] = _Known()
        return known

    # --- queries -----------------------------------------------------------------------------------------------------

    def is_settled(self, name: str) -> bool:
        known = self._names.get(name)
        return known is None or not known.in_flight

    def last_sequence_id(self, name: str) -> int:
        """Return the highest durable sequence id of the producer `name`; NO_SEQUENCE_ID if there is none."""
        known = self._names.get(name)
        return NO_SEQUENCE_ID if known is None or known.persisted == _BELOW_ALL else known.persisted

    def dropped(self, name: str, run: SendRun) -> None:
        """Record the duplicates `run` of the producer `name` for the command `pybroker explain`. Duplicates get
        receipts, but are not stored.
        """
        known = self._known(name)
        before = known.dropped
        messages = 0 if before is None or before.pushed != known.pushed else before.messages
        known.dropped = Dropped(messages + len(run.sequence_ids), _signed(run.sequence_ids[-1]), known.pushed)

    def dropped_of(self, name: str) -> Dropped | None:
        known = self._names.get(name)
        found = None if known is None else known.dropped
        return None if known is None or found is None or found.pushed != known.pushed else found

    # --- recovery and expiry -------------------------------------------------------------------------------------------

    def found(self, name: str, sequence_id: int) -> None:
        known = self._known(name)
        known.persisted = max(known.persisted, _signed(sequence_id))
        known.pushed = max(known.pushed, known.persisted)

    def snapshot(self) -> Mapping[str, int]:
        return {name: known.persisted for name, known in self._names.items() if known.persisted != _BELOW_ALL}

    def forget_inactive(self, attached: Container[str], now_ms: float, timeout_ms: float, max_producers: int) -> int:
        """Remove names that have been inactive for `timeout_ms`, and the longest inactive names above `max_producers`.
        Return the number of removed names.

        Inactivity starts at the first call of this method after the producer left. Names with an attached producer or
        with messages in flight are kept.
        """
        gone: list[tuple[float, str]] = []
        for name, known in self._names.items():
            if known.in_flight or name in attached:
                known.inactive_since_ms = None
            else:
                if known.inactive_since_ms is None:
                    known.inactive_since_ms = now_ms
                gone.append((known.inactive_since_ms, name))
        gone.sort(key=lambda pair: pair[0])  # stable: names seen in the same call keep their order
        too_many = len(self._names) - max_producers
        forgotten = [
            name for index, (since_ms, name) in enumerate(gone) if index < too_many or now_ms - since_ms >= timeout_ms
        ]
        for name in forgotten:
            del self._names[name]
        return len(forgotten)

    def check_invariants(self) -> None:
        for known in self._names.values():
            assert known.persisted <= known.pushed
            assert known.in_flight or known.persisted == known.pushed or known.epoch
            assert (known.last_accepted is not None) == bool(known.in_flight)


def _signed(sequence_id: int) -> int:
    return sequence_id if sequence_id <= _MAX_SEQUENCE_ID else sequence_id - (1 << 64)


def completes_message(entry: bytes) -> bool:
    chunk = chunk_of(entry)
    return chunk is None or chunk.chunk_id == chunk.chunk_count - 1
