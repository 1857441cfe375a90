"""Access of producers to a topic: rules of the access modes and the topic epoch. Pure.

A topic is free, shared by any number of producers, or held by one producer with exclusive access. In all cases except
free, other producers may wait for exclusive access. The result for a new producer (E: Exclusive, F:
ExclusiveWithFencing, W: WaitForExclusive):

                            Shared          E                 W          F
    free                    is attached     takes over        takes over takes over
    shared, none waits      is attached     ProducerFenced    waits      takes over, all others are fenced
    shared, some wait       ProducerBusy    ProducerFenced    waits      takes over, all others are fenced
    held                    ProducerBusy    ProducerFenced    waits      takes over, all others are fenced

Each take-over increments the epoch, which begins at 0. The caller stores the new epoch durably, then calls `took_over`,
then responds to the producer. In between, the producer *claims* the topic, which accepts no other producers.

A producer that had exclusive access before sends its epoch. If it equals the topic's epoch, the producer becomes the
holder again. If it is older, the producer is fenced, because its unsent messages must not follow the messages of its
successor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Generic, Protocol, TypeVar

from pybroker.errors import ProducerBusy, ProducerFenced


class AccessMode(StrEnum):
    """Access mode of a producer: Shared, Exclusive, ExclusiveWithFencing or WaitForExclusive."""

    SHARED = "Shared"
    EXCLUSIVE = "Exclusive"
    EXCLUSIVE_WITH_FENCING = "ExclusiveWithFencing"
    WAIT_FOR_EXCLUSIVE = "WaitForExclusive"


class Candidate(Protocol):
    """Attributes of a producer that the access rules use. Compared by identity."""

    @property
    def name(self) -> str:
        """Producer name, for error texts and to recognize a reconnecting producer."""

    @property
    def access_mode(self) -> AccessMode: ...

    @property
    def former_epoch(self) -> int | None:
        """Epoch of the producer's earlier exclusive access to the topic, or None."""


P = TypeVar("P", bound=Candidate)


class Standing(Enum):
    """State of a producer after it joined."""

    ATTACHED = "attached"
    CLAIMS = "claims"
    WAITS = "waits"


@dataclass(frozen=True, slots=True)
class Joined(Generic[P]):
    """Result for a new producer, and the producers that lost access: `fenced` were attached or claiming,
    `fenced_waiting` were waiting.
    """

    standing: Standing
    fenced: Sequence[P] = ()
    fenced_waiting: Sequence[P] = ()


@dataclass(frozen=True, slots=True)
class Left(Generic[P]):
    """Result of a producer's departure: the waiting producer that now claims the topic, and waiting producers that are
    fenced because their epoch is outdated.
    """

    claimant: P | None = None
    fenced_waiting: Sequence[P] = ()


class ProducerAccess(Generic[P]):
    """Access state of the producers of one topic. `epoch` never decreases.

    The topic is free without waiting producers, or producers share it, or one producer holds or claims it.
    """

    def __init__(self, epoch: int | None) -> None:
        self.epoch = epoch
        self._shared: dict[P, None] = {}
        self._holder: P | None = None  # or claimant
        self._claimed_epoch: int | None = None  # while the holder only claims the topic
        self._waiting: list[P] = []

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    @property
    def waiting(self) -> Sequence[P]:
        return tuple(self._waiting)

    @property
    def holder(self) -> P | None:
        return self._holder

    def join(self, producer: P) -> Joined[P]:
        """Add a producer. Return its state, and the producers that it fences. If the topic does not admit it, raises
        ProducerBusy for the access mode Shared, and ProducerFenced for the other modes.
        """
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
        """Return whether `producer` belongs to the client that has exclusive access and has reconnected on a new
        connection. If so, make it the first waiting producer.

        The caller must then check the old connection. If it is alive, the caller calls `leave` for `producer`. If it is
        not, the caller calls `leave` for the old producer, and `producer` gets exclusive access.
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
        """Replace `old` by `new`: the client has reopened the same producer on the same connection."""
        if old is self._holder:
            self._holder = new
        else:
            # in the same order
            self._shared = {new if each is old else each: None for each in self._shared}

    def claimed_epoch(self, producer: P) -> int | None:
        return self._claimed_epoch if producer is self._holder else None

    def took_over(self, producer: P) -> bool:
        """Record that the new topic epoch of `producer` is durable, so that `producer` has exclusive access now. Return
        False if it has left or was fenced while the epoch was being stored.
        """
        epoch = self.claimed_epoch(producer)
        if epoch is None:
            return False
        assert self.epoch is None or epoch >= self.epoch, "the topic epoch must not decrease"
        self.epoch, self._claimed_epoch = epoch, None
        return True

    def leave(self, producer: P) -> Left[P]:
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
        present = [*self._shared] if self._holder is None else [self._holder]
        waiting, self._waiting = self._waiting, []
        self._shared.clear()
        self._holder = self._claimed_epoch = None
        return present, waiting

    def check_invariants(self) -> None:
        assert self._holder is None or not self._shared, "a topic is both shared and held"
        assert not self._waiting or self._holder is not None or self._shared, "producers wait for a free topic"
        assert self._claimed_epoch is None or self._holder is not None, "an epoch is claimed without a claimant"
        producers = [*self._shared, *self._waiting, *([] if self._holder is None else [self._holder])]
        assert len({id(each) for each in producers}) == len(producers), "a producer is in two groups"

    def _claim(self, producer: P) -> None:
        former = producer.former_epoch
        self._holder = producer
        if former is not None:
            self._claimed_epoch = former  # At least the topic's epoch; larger if the topic has lost it.
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
