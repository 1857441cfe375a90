"""Who gets which message of a non-persistent topic, at the moment it is published: nothing is kept, nothing comes again.

What no consumer can take now is dropped for the subscription, and counted in messages. A consumer can take an entry while it has a
permit and its connection has room; an entry is sent whole, so that a batch may take the permits below zero. Nobody tracks what is
unacknowledged.

* Exclusive and Failover: everything to the active consumer. A change of it needs no pause: there is nothing to hand over.
* Shared: entry by entry to whoever's turn it is, by priority level.
* Key_Shared: to the owner of the entry's hash; what its owner cannot take is dropped, since any other consumer would break the
  order. A hash that moves needs no draining: nobody knows who still works on it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.dispatcher import Delivery
from pybroker.dispatch.failover import elect
from pybroker.dispatch.key_shared.hash_owners import HashOwners
from pybroker.dispatch.key_shared_dispatcher import KeySharedSettings
from pybroker.dispatch.priority_levels import PriorityLevels
from pybroker.errors import ConsumerBusy

LEDGER_ID = 0
ENTRY_ID = 0
"""Every message of a non-persistent topic has the id 0:0, as its receipt."""


class NonPersistentDispatcher(ABC):
    """The consumers of one subscription. Owned by the subscription.

    Invariants: every entry goes to at most one consumer; none is sent to a consumer without a permit.
    """

    kind: ClassVar[str]
    """The subscription type as stats and the protocol name it."""

    needs_key_hashes: ClassVar[bool] = False
    """Whether `assign` must be given `model.hashing.key_hash` of each entry's sticky key."""

    def __init__(self) -> None:
        self.consumers: list[ConsumerState] = []
        self.owners: HashOwners | None = None
        """The owners of hashes; None for types that do not look at keys."""
        self.dropped_messages = 0
        """Messages that no consumer could take."""

    @property
    def active_consumer(self) -> ConsumerState | None:
        """The one consumer that gets entries; None for types that serve several, and when there is none."""
        return None

    @abstractmethod
    def add_consumer(self, consumer: ConsumerState) -> None:
        """Attach `consumer`. Raises ConsumerBusy, ConsumerAssignError, and nothing of it remains then."""

    @abstractmethod
    def remove_consumer(self, consumer: ConsumerState) -> None:
        """Detach `consumer`."""

    @abstractmethod
    def assign(
        self, payloads: list[bytes], message_counts: list[int], key_hashes: Sequence[int] | None
    ) -> list[Delivery]:
        """Who gets which of these entries, one delivery for each consumer; the others are dropped and counted."""

    def _up_to_permits(
        self, consumer: ConsumerState, payloads: list[bytes], message_counts: list[int]
    ) -> Delivery | None:
        """As many of these entries as `consumer` can take; the rest is dropped."""
        if not consumer.can_take():
            self.dropped_messages += sum(message_counts)
            return None
        messages = sum(message_counts)
        if messages > consumer.permits:
            messages, taken = _affordable(message_counts, consumer.permits)
            self.dropped_messages += sum(message_counts[taken:])
            payloads, message_counts = payloads[:taken], message_counts[:taken]
        consumer.spend(messages, len(payloads))
        return _delivery(consumer, payloads, message_counts, messages)

    def check_invariants(self) -> None:
        """Assert what must hold between calls; for tests."""
        assert len(set(self.consumers)) == len(self.consumers), "consumer attached twice"


def _affordable(message_counts: list[int], permits: int) -> tuple[int, int]:
    """How many messages, and how many entries, go out while there is a permit left."""
    messages = taken = 0
    while messages < permits:
        messages += message_counts[taken]
        taken += 1
    return messages, taken


def _delivery(consumer: ConsumerState, payloads: list[bytes], message_counts: list[int], messages: int) -> Delivery:
    ids = [ENTRY_ID] * len(payloads)
    return Delivery(consumer, LEDGER_ID, ids, payloads, message_counts, messages, None, None)


class SingleActiveNonPersistentDispatcher(NonPersistentDispatcher):
    """Everything to the active consumer."""

    def __init__(self) -> None:
        super().__init__()
        self._active: ConsumerState | None = None

    @property
    def active_consumer(self) -> ConsumerState | None:
        return self._active

    @abstractmethod
    def _elect(self) -> ConsumerState | None:
        """Who is to be active among the consumers as they are now."""

    def add_consumer(self, consumer: ConsumerState) -> None:
        self.consumers.append(consumer)
        self._active = self._elect()

    def remove_consumer(self, consumer: ConsumerState) -> None:
        self.consumers.remove(consumer)
        self._active = self._elect()

    def assign(
        self, payloads: list[bytes], message_counts: list[int], key_hashes: Sequence[int] | None
    ) -> list[Delivery]:
        assert self._active is not None, "a subscription without consumers is dropped"
        delivery = self._up_to_permits(self._active, payloads, message_counts)
        return [] if delivery is None else [delivery]

    def check_invariants(self) -> None:
        super().check_invariants()
        assert self._active is self._elect()


class ExclusiveNonPersistentDispatcher(SingleActiveNonPersistentDispatcher):
    """At most one consumer at a time."""

    kind = "Exclusive"

    def add_consumer(self, consumer: ConsumerState) -> None:
        if self.consumers:
            raise ConsumerBusy("Exclusive consumer is already connected")
        super().add_consumer(consumer)

    def _elect(self) -> ConsumerState | None:
        return self.consumers[0] if self.consumers else None


class FailoverNonPersistentDispatcher(SingleActiveNonPersistentDispatcher):
    """The active consumer is chosen as on a persistent topic, and is active at once."""

    kind = "Failover"

    def __init__(self, topic_name: str, partition: int | None) -> None:
        """`topic_name` in full; `partition` None for the hash ring."""
        super().__init__()
        self._topic_name = topic_name
        self._partition = partition

    def _elect(self) -> ConsumerState | None:
        return elect(self.consumers, self._topic_name, self._partition)


class SharedNonPersistentDispatcher(NonPersistentDispatcher):
    """Each entry to whoever's turn it is, within the best priority level where anybody can take one."""

    kind = "Shared"

    def __init__(self) -> None:
        super().__init__()
        self._levels = PriorityLevels()

    def add_consumer(self, consumer: ConsumerState) -> None:
        self.consumers.append(consumer)
        self._levels.add(consumer)

    def remove_consumer(self, consumer: ConsumerState) -> None:
        self.consumers.remove(consumer)
        self._levels.remove(consumer)

    def assign(
        self, payloads: list[bytes], message_counts: list[int], key_hashes: Sequence[int] | None
    ) -> list[Delivery]:
        if len(self.consumers) == 1:
            delivery = self._up_to_permits(self.consumers[0], payloads, message_counts)
            return [] if delivery is None else [delivery]
        shares: dict[ConsumerState, list[int]] = {}
        for index, message_count in enumerate(message_counts):
            consumer = self._levels.take_turn()
            if consumer is None:
                self.dropped_messages += sum(message_counts[index:])
                break
            consumer.spend(message_count, 1)
            shares.setdefault(consumer, []).append(index)
        return [_share(consumer, indexes, payloads, message_counts) for consumer, indexes in shares.items()]

    def check_invariants(self) -> None:
        super().check_invariants()
        self._levels.check_invariants(self.consumers)


class KeySharedNonPersistentDispatcher(NonPersistentDispatcher):
    """Each entry to the owner of its hash. Mode and flag are those of the first consumer, as long as anybody is connected."""

    kind = "Key_Shared"
    needs_key_hashes = True

    def __init__(self, settings: KeySharedSettings) -> None:
        super().__init__()
        self.owners: HashOwners = HashOwners(settings.ring_points)

    def add_consumer(self, consumer: ConsumerState) -> None:
        self.owners.add(consumer, is_first=not self.consumers)
        self.consumers.append(consumer)

    def remove_consumer(self, consumer: ConsumerState) -> None:
        self.consumers.remove(consumer)
        self.owners.remove(consumer)

    def assign(
        self, payloads: list[bytes], message_counts: list[int], key_hashes: Sequence[int] | None
    ) -> list[Delivery]:
        assert key_hashes is not None
        shares: dict[ConsumerState, list[int]] = {}
        for index, sticky_hash in enumerate(self.owners.selector.sticky_hashes(key_hashes)):
            owner = self.owners.selector.owner(sticky_hash)
            if owner is None or not owner.can_take():
                self.dropped_messages += message_counts[index]
            else:
                owner.spend(message_counts[index], 1)
                shares.setdefault(owner, []).append(index)
        return [_share(consumer, indexes, payloads, message_counts) for consumer, indexes in shares.items()]


def _share(consumer: ConsumerState, indexes: list[int], payloads: list[bytes], message_counts: list[int]) -> Delivery:
    counts = [message_counts[index] for index in indexes]
    return _delivery(consumer, [payloads[index] for index in indexes], counts, sum(counts))
