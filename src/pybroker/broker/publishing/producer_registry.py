"""Producers of one topic: attached producers by name, the holder of exclusive access, and producers that wait for it.

`producer_access.py` has the rules. The topic epoch is durable before its producer receives a response. A holder that
blocks other producers is checked with a PING, and closed if its client does not respond.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from pybroker.broker.publishing import producer_admission
from pybroker.broker.publishing.producer_access import AccessMode, ProducerAccess, Standing
from pybroker.errors import BrokerError, ProducerBusy, ProducerFenced, StoreError
from pybroker.runtime import logs

if TYPE_CHECKING:
    from pybroker.broker.context.topic_context import TopicContext
    from pybroker.broker.publishing.producer import Producer

TOPIC_EPOCH_PROPERTY = "pulsar.topic.epoch"
"""Topic property that stores the topic epoch. The REST API returns it like any other property."""
LARGEST_EPOCH = 1 << 62
"""Upper limit of a stored epoch, so that later epochs fit into the protocol's 64 bits."""


def stored_epoch(properties: Mapping[str, str]) -> int | None:
    """Return the topic epoch in the stored properties; None if it is missing or invalid."""
    text = properties.get(TOPIC_EPOCH_PROPERTY, "")
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(LARGEST_EPOCH))):
        return None
    return epoch if (epoch := int(text)) <= LARGEST_EPOCH else None


class ProducerOwner(Protocol):
    """Topic to which the producers belong."""

    async def require_permission(self, producer: Producer) -> None:
        """Check that `producer` still has the permission to publish, which may have been revoked while the request
        waited. Raises AuthorizationError, and ServiceNotReady if the authorization provider does not answer.
        """

    def require_admissible(self, producer: Producer) -> None:
        """Check that the topic accepts `producer`. Raises the BrokerError that the client receives."""

    async def store_epoch(self, epoch: int) -> None: ...

    async def settled(self, producer_name: str) -> None: ...


class ProducerRegistry:
    """All producers of one topic. Each producer in `attached` may publish."""

    def __init__(self, topic: TopicContext, epoch: int | None, owner: ProducerOwner) -> None:
        self._topic = topic
        self._owner = owner
        self._access: ProducerAccess[Producer] = ProducerAccess(epoch)
        self.attached: dict[str, Producer] = {}

    @property
    def waiting_count(self) -> int:
        return self._access.waiting_count

    @property
    def waiting(self) -> Sequence[Producer]:
        return self._access.waiting

    @property
    def holder(self) -> Producer | None:
        return self._access.holder

    @property
    def epoch(self) -> int | None:
        return self._access.epoch

    async def enter(self, producer: Producer) -> None:
        """Attach `producer`, or let it wait for exclusive access. Raises ProducerBusy, ProducerFenced, StoreError, and
        the errors of `require_permission` and `require_admissible`.
        """
        try:
            await self._owner.require_permission(producer)
            standing = self.add(producer)
        except (ProducerBusy, ProducerFenced):
            if not await self._outlives_holder(producer):
                raise
            if producer.refusal is not None:
                raise producer.refusal from None
            if self._has_claim(producer):
                standing = Standing.CLAIMS
            else:
                await self._owner.require_permission(producer)
                standing = self.add(producer)
        if standing is Standing.CLAIMS:
            await self._take_over(producer)

    def add(self, producer: Producer) -> Standing:
        """Add `producer` without waiting, and return its state. The caller has checked its permission. In the state
        CLAIMS, the producer blocks other producers, but is attached only after its topic epoch is stored.

        Raises the errors of `require_admissible`, ProducerBusy, ProducerFenced.
        """
        self._owner.require_admissible(producer)
        if self._succeeds(producer):
            return Standing.ATTACHED
        if producer.access_mode is AccessMode.SHARED and producer.name in self.attached:
            raise ProducerBusy(
                f"Producer with name '{producer.name}' is already connected to topic '{self._topic.name}'"
            )
        if producer.access_mode is not AccessMode.EXCLUSIVE_WITH_FENCING:  # It will be the only one.
            producer_admission.require_room_for_producer(self._topic, self.attached.values(), producer.peer)
        joined = self._access.join(producer)
        for each in joined.fenced:
            self._fence_out(each, producer)
        for each in joined.fenced_waiting:
            self._refuse(each, ProducerFenced("Fenced out"))
        if joined.standing is Standing.ATTACHED:
            self._attach(producer)
        elif joined.standing is Standing.WAITS:
            producer.is_waiting = True
            self._topic.tasks.start(self._check_holder(), "liveness of the exclusive producer")
        return joined.standing

    def _succeeds(self, producer: Producer) -> bool:
        """Replace an earlier producer of this name on the same connection. Return whether there was one."""
        present = self.attached.get(producer.name)
        if present is None or present.peer is not producer.peer or producer.epoch <= present.epoch:
            return False
        is_same = (
            present.has_user_provided_name == producer.has_user_provided_name
            and present.access_mode is producer.access_mode
            and (present.access_mode is AccessMode.SHARED or producer.former_epoch == self.epoch)
        )
        if is_same:
            self._access.succeed(present, producer)
            self._attach(producer)
            present.close_from_broker()
        return is_same

    async def _take_over(self, producer: Producer) -> None:
        """Store the epoch that `producer` claims, then attach it. Raises StoreError, or the reason why the producer
        lost the claim.
        """
        epoch = self._access.claimed_epoch(producer)
        try:
            if epoch is not None:
                await self._owner.store_epoch(epoch)
        except BaseException:
            producer.detach()
            raise
        if not self._access.took_over(producer):
            raise producer.refusal or ProducerFenced("The producer left before it had exclusive access")
        self._attach(producer)
        logs.info("producer.took_over", topic=self._topic.name, producer=producer.name, epoch=epoch)

    def _attach(self, producer: Producer) -> None:
        self.attached[producer.name] = producer
        producer.topic_epoch = self.epoch
        self._topic.broker_context.refusals.admitted(str(self._topic.name), producer.name, producer.peer.address)

    def remove(self, producer: Producer) -> None:
        """Remove `producer`. If exclusive access is free now, the next waiting producer gets it."""
        if self.attached.get(producer.name) is producer:
            del self.attached[producer.name]
            self._topic.in_use()
        left = self._access.leave(producer)
        for each in left.fenced_waiting:
            self._refuse(each, ProducerFenced("Topic epoch has already moved"))
        following = left.claimant
        # `enter` handles a producer that has reconnected.
        if following is not None and following.is_waiting:
            self._topic.tasks.start(self._give_turn(following), "turn of a waiting producer")

    async def _give_turn(self, producer: Producer) -> None:
        try:
            await self._owner.require_permission(producer)
            self._owner.require_admissible(producer)
            await self._owner.settled(producer.name)
            await self._take_over(producer)
        except (BrokerError, StoreError) as error:
            producer.detach()
            self._refuse(producer, error if isinstance(error, BrokerError) else error.answer())
        else:
            producer.is_waiting = False
            producer.peer.producer_ready(producer.producer_id)

    async def _outlives_holder(self, producer: Producer) -> bool:
        """Check whether the client of the producer that blocks `producer` is alive. Return True if that producer is
        gone.

        If it was an earlier connection of the same producer, `producer` claims the topic ahead of all waiting
        producers.
        """
        holder = self._access.holder or self.attached.get(producer.name)
        if holder is None or holder.peer is producer.peer:
            return False
        is_return = self._access.return_behind(producer)
        is_alive = True
        try:
            is_alive = await holder.peer.is_alive()
        finally:
            if is_return and is_alive and not self._has_claim(producer):
                producer.detach()
        return not is_alive or self._has_claim(producer)

    def _has_claim(self, producer: Producer) -> bool:
        return self._access.claimed_epoch(producer) is not None

    async def _check_holder(self) -> None:
        holder = self._access.holder
        if holder is not None:
            await holder.peer.is_alive()

    def close_all(self, refusal: BrokerError) -> None:
        """Close all producers. Producers that are not attached receive the error `refusal`."""
        present, waiting = self._access.clear()
        for producer in (*present, *waiting):
            if self.attached.get(producer.name) is producer:
                producer.close_from_broker()
            else:
                self._refuse(producer, refusal)

    def without_access(self) -> list[Producer]:
        """Return the producers that are not attached, because they wait for exclusive access, or until their topic
        epoch is stored.
        """
        holder = self._access.holder
        is_claimant = holder is not None and self.attached.get(holder.name) is not holder
        return [*self._access.waiting, *([holder] if holder is not None and is_claimant else [])]

    def refuse_revoked(self, producer: Producer, error: BrokerError) -> None:
        """Reject `producer` with `error`, because its permission was revoked. Do nothing if it is attached or closed."""
        if producer in self.without_access():
            producer.detach()
            self._refuse(producer, error)

    def _fence_out(self, producer: Producer, successor: Producer) -> None:
        """Close `producer` without notifying its client, which would reconnect immediately."""
        if self.attached.get(producer.name) is producer:
            del self.attached[producer.name]
            producer.is_closed = True
            producer.refusal = ProducerFenced(
                f"producer {successor.name} from {successor.peer.address} fenced this producer (ExclusiveWithFencing)"
            )
            self._note(producer, producer.refusal)
            producer.peer.producer_fenced(producer.producer_id)
        else:
            self._refuse(producer, ProducerFenced("Fenced out"))

    def _refuse(self, producer: Producer, refusal: BrokerError) -> None:
        """Deny exclusive access to a waiting or claiming `producer`."""
        producer.is_closed = True
        producer.refusal = refusal
        if producer.is_waiting:
            self._note(producer, refusal)
            producer.peer.producer_refused(producer.producer_id, refusal)

    def _note(self, producer: Producer, refusal: BrokerError) -> None:
        topic = self._topic
        topic.broker_context.refusals.note(
            str(topic.name), producer.name, producer.peer.address, refusal, topic.runtime.clock.wall_ms()
        )
