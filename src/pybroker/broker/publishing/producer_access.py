"""Who may produce to a topic: the access modes Shared, Exclusive, ExclusiveWithFencing and WaitForExclusive, and the topic's epoch.

Pure. A topic is free, shared by any number of producers, or held by one that has exclusive access; behind those who are there
others may wait for that. What a newcomer gets (E: Exclusive, F: ExclusiveWithFencing, W: WaitForExclusive):

                            Shared          E                 W          F
    free                    is attached     takes over        takes over takes over
    shared, nobody waits    is attached     ProducerFenced    waits      takes over, all others are fenced
    shared, some wait       ProducerBusy    ProducerFenced    waits      takes over, all others are fenced
    held                    ProducerBusy    ProducerFenced    waits      takes over, all others are fenced

Each take-over has an epoch, one above the one before, and the first is 0. The caller stores it and only then says so here and to
the producer: until that the producer *claims* the topic, which is closed to others as if it were held, but the epoch is the old
one. A producer that had exclusive access before says with which epoch. If that is the topic's, nobody took over meanwhile and it
takes its place again with the same epoch; if it is older, somebody did, and it is fenced: what it still wants to publish must not
come behind the messages of its successor.

Names, limits, connections and storage are the caller's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Generic, Protocol, TypeVar

from pybroker.errors import ProducerBusy, ProducerFenced


class AccessMode(StrEnum):
    """As the protocol and the stats name them."""

    SHARED = "Shared"
    EXCLUSIVE = "Exclusive"
    EXCLUSIVE_WITH_FENCING = "ExclusiveWithFencing"
    WAIT_FOR_EXCLUSIVE = "WaitForExclusive"


class Candidate(Protocol):
    """What is asked of a producer here; compared by identity."""

    @property
    def name(self) -> str:
        """For texts, and to know who comes back."""

    @property
    def access_mode(self) -> AccessMode: ...

    @property
    def former_epoch(self) -> int | None:
        """With which epoch it has had exclusive access to the topic before, if it has."""


P = TypeVar("P", bound=Candidate)


class Standing(Enum):
    """What a newcomer gets."""

    ATTACHED = "attached"
    CLAIMS = "claims"
    WAITS = "waits"


@dataclass(frozen=True, slots=True)
class Joined(Generic[P]):
    """A newcomer's standing, and whom it has driven out: those who were there, or claimed the topic, and those who waited."""

    standing: Standing
    fenced: Sequence[P] = ()
    fenced_waiting: Sequence[P] = ()


@dataclass(frozen=True, slots=True)
class Left(Generic[P]):
    """Who claims the topic now because somebody left, and who waited but is too late, as its former epoch is over."""

    claimant: P | None = None
    fenced_waiting: Sequence[P] = ()


class ProducerAccess(Generic[P]):
    """Owned by its topic.

    Invariants: there are producers that share the topic, or one that holds or claims it, or neither, then nobody waits; a producer
    is in one place only; `epoch` never gets smaller.
    """

    def __init__(self, epoch: int | None) -> None:
        """`epoch` is the one of the last take-over that was stored, None when there was none."""
        self.epoch = epoch
        self._shared: dict[P, None] = {}
        self._holder: P | None = None  # or claimant
        self._claimed_epoch: int | None = None  # with which the holder only claims the topic, until that is stored
        self._waiting: list[P] = []

    @property
    def waiting_count(self) -> int:
        """How many wait for exclusive access."""
        return len(self._waiting)

    @property
    def waiting(self) -> Sequence[P]:
        """Who waits, the next one first."""
        return tuple(self._waiting)

    @property
    def holder(self) -> P | None:
        """Who has exclusive access, or claims it."""
        return self._holder

    def join(self, producer: P) -> Joined[P]:
        """A newcomer. Raises ProducerBusy, ProducerFenced."""
        mode = producer.access_mode
        if mode is AccessMode.SHARED:
            if self._holder is not None or self._waiting:
                raise ProducerBusy(self._occupied())
            self._shared[producer] = None
            return Joined(Standing.ATTACHED)
        self._require_current(producer)
        is_free = self._holder is None and not self._shared
        if not is_free and mode is AccessMode.WAIT_FOR_EXCLUSIVE:
            self._waiting.insert(0 if self._is_return(producer) else len(self._waiting), producer)
            return Joined(Standing.WAITS)
        if not is_free and mode is AccessMode.EXCLUSIVE:
            raise ProducerFenced(self._occupied())
        fenced, fenced_waiting = self.clear()
        self._claim(producer)
        return Joined(Standing.CLAIMS, fenced, fenced_waiting)

    def return_behind(self, producer: P) -> bool:
        """Have `producer` wait as the very next, if it is who holds the topic and has come back by another way; False if not.
        One with WaitForExclusive does so by `join`.

        The caller finds out meanwhile whether the old one lives. It lives: `leave`. It is gone: the place goes to `producer`.
        """
        if not self._is_return(producer):
            return False
        self._waiting.insert(0, producer)
        return True

    def _is_return(self, producer: P) -> bool:
        holder = self._holder
        if holder is None or self._claimed_epoch is not None or holder.name != producer.name:
            return False
        return producer.former_epoch is not None and producer.former_epoch == self.epoch

    def succeed(self, old: P, new: P) -> None:
        """`new` takes the place of `old`, which has a place: the same client said so on the same connection."""
        if old is self._holder:
            self._holder = new
        else:
            # At the same place in order: nobody else notices.
            self._shared = {new if each is old else each: None for each in self._shared}

    def claimed_epoch(self, producer: P) -> int | None:
        """With which epoch `producer` claims the topic; None when it does not, or no longer does."""
        return self._claimed_epoch if producer is self._holder else None

    def took_over(self, producer: P) -> bool:
        """The epoch that `producer` claims is stored. False when it lost the topic, or left, while it was."""
        epoch = self.claimed_epoch(producer)
        if epoch is None:
            return False
        assert self.epoch is None or epoch >= self.epoch, "an epoch gets smaller"
        self.epoch, self._claimed_epoch = epoch, None
        return True

    def leave(self, producer: P) -> Left[P]:
        """`producer` is gone, wherever it was; nothing happens when it was nowhere."""
        if producer in self._waiting:
            self._waiting.remove(producer)
            return Left()
        if producer is self._holder:
            self._holder = self._claimed_epoch = None
        elif self._shared.pop(producer, self) is self:
            return Left()
        if self._shared:
            return Left()
        late: list[P] = []
        while self._waiting:
            following = self._waiting.pop(0)
            if not self._is_late(following):
                self._claim(following)
                return Left(following, late)
            late.append(following)
        return Left(None, late)

    def clear(self) -> tuple[Sequence[P], Sequence[P]]:
        """All must go: who was there or claimed the topic, and who waited. Nobody is asked to follow."""
        present = [*self._shared] if self._holder is None else [self._holder]
        waiting, self._waiting = self._waiting, []
        self._shared.clear()
        self._holder = self._claimed_epoch = None
        return present, waiting

    def check_invariants(self) -> None:
        """For tests."""
        assert self._holder is None or not self._shared, "shared and held at once"
        assert not self._waiting or self._holder is not None or self._shared, "waiting for nobody"
        assert self._claimed_epoch is None or self._holder is not None, "a claim of nobody"
        everybody = [*self._shared, *self._waiting, *([] if self._holder is None else [self._holder])]
        assert len({id(each) for each in everybody}) == len(everybody), "one producer, two places"

    def _claim(self, producer: P) -> None:
        former = producer.former_epoch
        self._holder = producer
        if former is not None:
            self._claimed_epoch = former  # At least the topic's; larger, where the topic has lost it.
        else:
            self._claimed_epoch = 0 if self.epoch is None else self.epoch + 1

    def _is_late(self, producer: P) -> bool:
        former = producer.former_epoch
        return former is not None and self.epoch is not None and former < self.epoch

    def _require_current(self, producer: P) -> None:
        if self._is_late(producer):
            raise ProducerFenced(
                f"Topic epoch has already moved. Current epoch: {self.epoch}, Producer epoch: {producer.former_epoch}"
            )

    def _occupied(self) -> str:
        if self._holder is not None:
            return f"Topic has an existing exclusive producer: {self._holder.name}"
        if self._waiting:
            return "Topic has producers that wait for exclusive access"
        return "Topic has existing shared producers"
