"""Dispatchers of non-persistent topics, which assign each message when it is published. Nothing is stored or
redelivered.

Messages that no consumer can take are dropped for the subscription and counted. A consumer can take an entry while it
has a permit and its connection has capacity. An entry is sent whole, so a batch may make the permits negative.

* Exclusive and Failover: everything goes to the active consumer, which changes without a delay.
* Shared: round robin over the consumers, by priority level.
* Key_Shared: an entry goes to the owner of its hash, or is dropped. A hash that moves does not drain.
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
"""Every message of a non-persistent topic has the id 0:0, also in its receipt."""


class NonPersistentDispatcher(ABC):
    """Decides which consumers of one subscription receive a message, when it is published.

    Invariants: every entry goes to at most one consumer; no entry goes to a consumer without a permit.
    """

    kind: ClassVar[str]
    """The name in stats and in the protocol."""

    needs_key_hashes: ClassVar[bool] = False
    """Whether `assign` requires `model.hashing.key_hash` of each entry's sticky key."""

    def __init__(self) -> None:
        self.consumers: list[ConsumerState] = []
        self.owners: HashOwners | None = None
        """The owners of the key hashes; None for types that do not use keys."""
        self.dropped_messages = 0

    @property
    def active_consumer(self) -> ConsumerState | None:
        return None

    @abstractmethod
    def add_consumer(self, consumer: ConsumerState) -> None:
        """Add a connected consumer. Raises ConsumerBusy or ConsumerAssignError if the consumer is refused; the
        dispatcher is then unchanged.
        """

    @abstractmethod
    def remove_consumer(self, consumer: ConsumerState) -> None: ...

    @abstractmethod
    def assign(
        self, payloads: list[bytes], message_counts: list[int], key_hashes: Sequence[int] | None
    ) -> list[Delivery]:
        """Assign newly published messages to consumers. Return one delivery for each consumer that receives some.
        Messages that no consumer can receive are dropped and counted.
        """

    def _up_to_permits(
        self, consumer: ConsumerState, payloads: list[bytes], message_counts: list[int]
    ) -> Delivery | None:
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
        assert len(set(self.consumers)) == len(self.consumers), "consumer attached twice"


def _affordable(message_counts: list[int], permits: int) -> tuple[int, int]:
    messages = taken = 0
    while messages < permits:
        messages += message_counts[taken]
        taken += 1
    return messages, taken


def _delivery(consumer: ConsumerState, payloads: list[bytes], message_counts: list[int], messages: int) -> Delivery:
    ids = [ENTRY_ID] * len(payloads)
    return Delivery(consumer, LEDGER_ID, ids, payloads, message_counts, messages, None, None)


class SingleActiveNonPersistentDispatcher(NonPersistentDispatcher):
    """Base of Exclusive and Failover: all messages go to the active consumer."""

    def __init__(self) -> None:
        super().__init__()
        self._active: ConsumerState | None = None

    @property
    def active_consumer(self) -> ConsumerState | None:
        return self._active

    @abstractmethod
    def _elect(self) -> ConsumerState | None: ...

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
    """Exclusive: at most one consumer, which receives all messages."""

    kind = "Exclusive"

    def add_consumer(self, consumer: ConsumerState) -> None:
        if self.consumers:
            raise ConsumerBusy("Exclusive consumer is already connected")
        super().add_consumer(consumer)

    def _elect(self) -> ConsumerState | None:
        return self.consumers[0] if self.consumers else None


class FailoverNonPersistentDispatcher(SingleActiveNonPersistentDispatcher):
    """Failover as on a persistent topic, but the elected consumer is active at once."""

    kind = "Failover"

    def __init__(self, topic_name: str, partition: int | None) -> None:
        """`topic_name` is the full name; with `partition` None, the consumer is elected by the hash ring."""
        super().__init__()
        self._topic_name = topic_name
        self._partition = partition

    def _elect(self) -> ConsumerState | None:
        return elect(self.consumers, self._topic_name, self._partition)


class SharedNonPersistentDispatcher(NonPersistentDispatcher):
    """Shared: round robin within the best priority level on which a consumer can take an entry."""

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
    """Key_Shared: each entry goes to the owner of its hash.

    The first consumer sets the mode and the out-of-order flag for as long as any consumer is connected.
    """

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
