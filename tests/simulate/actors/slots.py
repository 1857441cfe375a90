"""A producer and a consumer of a simulated client: what they know, and how they come back when broker or connection is gone.

A slot is opened by its client as often as need be; between two openings it is closed, and what it sent is sent again, as
official clients do.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tests.simulate import tape
from tests.simulate.actors.link import LinkLost, Type
from tests.simulate.actors.messages import Incoming, Outgoing, ack_set, incoming
from tests.simulate.actors.transactions import Bits, bits

from pybroker.model.position import Position, from_wire
from pybroker.wire import pulsar_api_pb2 as pb

if TYPE_CHECKING:
    from tests.simulate.actors.client import Client
    from tests.simulate.actors.link import Link

_GONE_FOR_GOOD = (
    "TopicTerminatedError", "ProducerFenced", "NotAllowedError", "SubscriptionNotFound", "ConsumerAssignError",
    "IncompatibleSchema", "ProducerBlockedQuotaExceededException", "ProducerBlockedQuotaExceededError", "TopicNotFound",
    "InvalidTopicName", "UnsupportedVersionError",
)  # fmt: skip

BUSY_S = 45.0
"""How long somebody who comes back is patient while another has the place; longer than it takes to find out that one is dead."""


class Slot:
    """Owned by its client. `settled` is set while it is open, or will never be."""

    def __init__(self, client: Client, id_: int, topic: str) -> None:
        self.client = client
        self.id = id_
        self.topic = topic
        self.is_wanted = True
        self.is_open = False
        self.was_open = False
        self.is_closed_early = False
        """The broker closed it behind the answer that opened it, before that was looked at."""
        self.refused = ""
        self.busy_since_s: float | None = None
        self.settled = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    @property
    def link(self) -> Link | None:
        """The connection to the broker that serves its topic."""
        return self.client.link_of(self)

    def refuse(self, error: str) -> bool:
        """Whether it gives up at this answer."""
        tape_ = self.client.tape
        event = tape_.note(
            self.client.name, tape.REFUSED, topic=self.topic, slot=f"{self.client.name}.{self.id}",
            subscription=getattr(self, "subscription", None), error=error,
        )  # fmt: skip
        busy = error in ("ProducerBusy", "ConsumerBusy")
        if busy and self.busy_since_s is None:
            self.busy_since_s = event.at_s
        is_late = busy and self.busy_since_s is not None and event.at_s - self.busy_since_s > BUSY_S
        if error in _GONE_FOR_GOOD or (busy and not self.was_open) or is_late:
            self.refused = error
            self.is_wanted = False
            self.settled.set()
            return True
        return False

    def opened(self) -> None:
        """Raises LinkLost when it is closed again already."""
        self.is_open = self.was_open = True
        if self.is_closed_early:
            self.lost("broker")
            raise LinkLost
        self.busy_since_s = None
        self.settled.set()

    def lost(self, why: str) -> None:
        """Open no more; the client opens it again if it is wanted."""
        self.is_open = False
        if self.is_wanted:
            self.settled.clear()

    async def open(self) -> None:
        """Raises Refused and LinkLost."""
        raise NotImplementedError


class ProducerSlot(Slot):
    """Sends again what was not answered when it opens anew."""

    def __init__(self, client: Client, id_: int, topic: str, facts: dict[str, Any]) -> None:
        super().__init__(client, id_, topic)
        self.name: str = facts.get("name", "")
        self._is_own_name = bool(self.name)
        self.access = facts.get("access", "Shared")
        self._initial_subscription = facts.get("initial_subscription", "")
        self._epoch = 0
        self._topic_epoch: int | None = None
        self.session = ""
        self._sessions = 0
        self.next_sequence_id: int | None = None
        self.pending: dict[tuple[int, int], Outgoing] = {}
        self.emptied = asyncio.Event()

    @property
    def waits_for_its_turn(self) -> bool:
        """Another producer has the topic for as long as it likes: who waits for exclusive access waits without an end."""
        return self.access == "WaitForExclusive" and not self.is_open

    async def open(self) -> None:
        fields: dict[str, Any] = {"user_provided_producer_name": self._is_own_name, "epoch": self._epoch}
        if self.name:
            fields["producer_name"] = self.name
        if self.access != "Shared":
            fields["producer_access_mode"] = pb.ProducerAccessMode.Value(self.access)
        if self._topic_epoch is not None:
            fields["topic_epoch"] = self._topic_epoch
        if self._initial_subscription and not self.was_open:
            fields["initial_subscription_name"] = self._initial_subscription
        link = self.link
        if link is None:
            raise LinkLost
        self.is_closed_early = False
        answer = await link.ask(Type.PRODUCER, topic=self.topic, producer_id=self.id, **fields)
        found = answer.producer_success
        self.name = found.producer_name
        if found.HasField("topic_epoch"):
            self._topic_epoch = found.topic_epoch
        self._epoch += 1
        self._sessions += 1
        self.session = f"{self.client.name}.{self.id}#{self._sessions}"
        if self.next_sequence_id is None:
            self.next_sequence_id = found.last_sequence_id + 1
        self.client.tape.note(
            self.client.name, tape.ATTACHED, topic=self.topic, producer=self.name, session=self.session,
            access=self.access, last_sequence_id=found.last_sequence_id,
        )  # fmt: skip
        self.opened()
        for outgoing in list(self.pending.values()):
            self._write(outgoing)

    def lost(self, why: str) -> None:
        if self.is_open:
            self.client.tape.note(self.client.name, tape.DETACHED, topic=self.topic, session=self.session, why=why)
        super().lost(why)

    def send(self, outgoing: Outgoing) -> None:
        """It is kept until it is answered."""
        self.pending[outgoing.sequence_id, outgoing.chunk_id] = outgoing
        self.emptied.clear()
        if self.is_open:
            self._write(outgoing)

    def _write(self, outgoing: Outgoing) -> None:
        link = self.link
        if link is None or not self.is_open:
            return
        self.client.tape.note(self.client.name, tape.SENT, **self._facts(outgoing))
        send = pb.CommandSend(producer_id=self.id, sequence_id=outgoing.sequence_id, **bits(outgoing.txn))  # type: ignore[arg-type]
        if outgoing.message_count > 1:
            send.num_messages = outgoing.message_count
            send.highest_sequence_id = outgoing.sequence_id + outgoing.message_count - 1
        if outgoing.chunk_id >= 0:
            send.is_chunk = True
        self.client.sending.set()
        link.send_entry(pb.BaseCommand(type=Type.SEND, send=send).SerializeToString(), outgoing.entry)

    def _facts(self, outgoing: Outgoing) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "producer": self.name,
            "session": self.session,
            "sequence_id": outgoing.sequence_id,
            "values": outgoing.values,
            "key": outgoing.key,
            "chunk": outgoing.chunk_id,
            "deliver_at_s": outgoing.deliver_at_s,
            "size_bytes": len(outgoing.entry),
            "txn": outgoing.txn,
        }

    def receipt(self, receipt: pb.CommandSendReceipt) -> None:
        position = from_wire(receipt.message_id.ledgerId, receipt.message_id.entryId)
        first = next((key for key in self.pending), None)
        if first is None or first[0] != receipt.sequence_id:
            if any(key[0] == receipt.sequence_id for key in self.pending):
                self.client.broken(
                    "receipts", f"{self.session}: receipt of {receipt.sequence_id}, {first} was sent before"
                )
            else:
                self.client.broken(
                    "receipts", f"{self.session}: receipt of {receipt.sequence_id}, which waits for none"
                )
            return
        outgoing = self.pending.pop(first)
        what = tape.DUPLICATE if position.ledger_id < 0 or position.entry_id < 0 else tape.RECEIPTED
        if self.topic.startswith("non-persistent:"):
            what = tape.TAKEN
        self.client.tape.note(self.client.name, what, position=tuple(position), **self._facts(outgoing))
        self._look_at_rest()

    def send_error(self, error: pb.CommandSendError) -> None:
        name = pb.ServerError.Name(error.error)
        self.client.tape.note(
            self.client.name, tape.SEND_REFUSED, topic=self.topic, session=self.session,
            sequence_id=error.sequence_id, error=name, message=error.message,
        )  # fmt: skip
        refused = next((key for key, each in self.pending.items() if key[0] == error.sequence_id and each.txn), None)
        if name == "NotAllowedError" and refused is not None:
            del self.pending[refused]  # Its transaction has ended; whatever else is sent goes on.
            self._look_at_rest()
        elif name in ("TopicTerminatedError", "ProducerFenced", "NotAllowedError"):
            self.give_up(name)
        elif self.link is not None and self.is_open:
            self.link.cut()  # As Java does, with everything that is not answered sent again.

    def give_up(self, error: str) -> None:
        """Nothing that is not answered will ever be sent again."""
        self.refused = error
        self.is_wanted = False
        self.pending.clear()
        self.lost(error)
        self.settled.set()
        self.emptied.set()

    def refuse(self, error: str) -> bool:
        if super().refuse(error):
            self.give_up(error)
            return True
        return False

    def _look_at_rest(self) -> None:
        if not self.pending:
            self.emptied.set()


@dataclass
class Asked:
    """An acknowledgement that waits for its receipt."""

    facts: dict[str, Any]
    future: asyncio.Future[Any] = field(repr=False)


class ConsumerSlot(Slot):
    """Holds what it was sent and has not acknowledged."""

    def __init__(self, client: Client, id_: int, topic: str, facts: dict[str, Any]) -> None:
        super().__init__(client, id_, topic)
        self.facts = facts
        self.subscription: str = facts["subscription"]
        self.kind: str = facts["kind"]
        self.is_durable: bool = facts.get("durable", True)
        self._openings = 0
        self.label = ""
        self.epoch = 0
        self.held: dict[Position, Incoming] = {}
        self.in_transactions: dict[Position, Incoming] = {}
        """What was acknowledged in one, whatever became of it."""
        self.seen: list[Position] = []
        self.permits = 0
        self.wanted_permits = 0
        self.got = asyncio.Event()

    @property
    def name(self) -> str:
        """As the broker shows it."""
        return f"{self.client.name}{self.id}"

    @property
    def has_active(self) -> bool:
        return self.kind in ("Exclusive", "Failover")

    async def open(self) -> None:
        facts = self.facts
        fields: dict[str, Any] = {
            "subType": pb.CommandSubscribe.SubType.Value(self.kind),
            "initialPosition": pb.CommandSubscribe.InitialPosition.Value(
                "Earliest" if facts.get("earliest", True) else "Latest"
            ),
            "durable": self.is_durable,
            "consumer_name": self.name,
            "priority_level": facts.get("priority", 0),
        }
        if facts.get("compacted"):
            fields["read_compacted"] = True
        if facts.get("out_of_order"):
            fields["keySharedMeta"] = pb.KeySharedMeta(
                keySharedMode=pb.KeySharedMode.AUTO_SPLIT, allowOutOfOrderDelivery=True
            )
        if self.has_active:
            fields["consumer_epoch"] = self.epoch
        if not self.is_durable and self.seen:
            last = max(self.seen)
            fields["start_message_id"] = pb.MessageIdData(ledgerId=last.ledger_id, entryId=last.entry_id)
        begun = len(self.client.tape.events)
        self._openings += 1
        self.label = f"{self.client.name}.{self.id}#{self._openings}"
        link = self.link
        if link is None:
            raise LinkLost
        self.is_closed_early = False
        await link.ask(Type.SUBSCRIBE, topic=self.topic, subscription=self.subscription, consumer_id=self.id, **fields)
        self.note(
            tape.ATTACHED, kind=self.kind, durable=self.is_durable, compacted=bool(facts.get("compacted")),
            out_of_order=bool(facts.get("out_of_order")), earliest=bool(facts.get("earliest", True)),
            begun=begun, broker=self.client.broker_of(self),
        )  # fmt: skip
        self.permits = 0
        self.opened()
        self.fill_permits()

    def note(self, what: str, **facts: Any) -> None:
        self.client.tape.note(
            self.client.name, what, topic=self.topic, subscription=self.subscription, consumer=self.label, **facts
        )

    def lost(self, why: str) -> None:
        if self.is_open:
            self.note(tape.DETACHED, why=why)
        super().lost(why)
        self.held.clear()
        self.permits = 0

    def fill_permits(self) -> None:
        """Ask for as many as are wanted."""
        more = self.wanted_permits - self.permits
        if more > 0 and self.is_open and self.link is not None:
            self.permits += more
            self.link.send(Type.FLOW, consumer_id=self.id, messagePermits=more)

    def message(self, command: pb.CommandMessage, tail: bytes) -> None:
        found = incoming(command, tail)
        if isinstance(found, str):
            self.client.broken("messages", f"{self.label}: {found}")
            return
        count = len(found.left)
        self.permits -= count
        if command.HasField("consumer_epoch") and command.consumer_epoch < self.epoch:
            self.skipped_ranges(found)  # Sent before the broker heard that everything is wanted again.
            return
        self.note(
            tape.GOT,
            position=tuple(found.position),
            values=[found.values[index] for index in sorted(found.left)],
            of=len(found.values),
            key=found.key,
            redeliveries=found.redeliveries,
            chunk=found.is_chunk,
        )
        self.held[found.position] = found
        self.seen.append(found.position)
        self.got.set()

    def skipped_ranges(self, found: Incoming) -> None:
        self.client.tape.note(self.client.name, tape.PASSED, topic=self.topic, values=sorted(found.left))

    # --- acknowledging -----------------------------------------------------------------------------------------------

    def acknowledge(self, positions: list[Position], *, has_receipt: bool, txn: Bits | None = None) -> None:
        """Whole entries."""
        ids = [pb.MessageIdData(ledgerId=each.ledger_id, entryId=each.entry_id) for each in positions]
        taken = [self.held.pop(each) for each in positions if each in self.held]
        if txn is not None:
            self.in_transactions |= {found.position: found for found in taken}
        facts = {"positions": [tuple(each) for each in positions]}
        self._ack(pb.CommandAck.Individual, ids, facts, has_receipt, txn, taken)

    def acknowledge_up_to(self, position: Position, *, has_receipt: bool, txn: Bits | None = None) -> None:
        ids = [pb.MessageIdData(ledgerId=position.ledger_id, entryId=position.entry_id)]
        taken = [self.held.pop(held) for held in list(self.held) if held <= position]
        self._ack(pb.CommandAck.Cumulative, ids, {"up_to": tuple(position)}, has_receipt, txn, taken)

    def acknowledge_parts(self, held: Incoming, done: set[int], *, has_receipt: bool, txn: Bits | None = None) -> None:
        """Of a batch, the messages at these indexes."""
        values = [held.values[index] for index in sorted(done)]
        held.left -= done
        message_id = pb.MessageIdData(ledgerId=held.position.ledger_id, entryId=held.position.entry_id)
        # Of a transaction's acknowledgement all bits are set but those of what it acknowledges, whatever others did before.
        left = held.left if txn is None else set(range(len(held.values))) - done
        message_id.ack_set.extend(ack_set(left, len(held.values)))
        message_id.batch_size = len(held.values)
        if not held.left:
            self.held.pop(held.position, None)
        parts = {"part_of": tuple(held.position), "values": values, "is_whole": not held.left}
        # What is refused of a batch is acknowledged whole later.
        again = replace(held, left=set(done))
        self._ack(pb.CommandAck.Individual, [message_id], parts, has_receipt, txn, [again])

    def _ack(
        self,
        kind: int,
        ids: list[pb.MessageIdData],
        facts: dict[str, Any],
        has_receipt: bool,
        txn: Bits | None,
        taken: list[Incoming],
    ) -> None:
        """Of a transaction, what was `taken` is held again when it is refused."""
        link = self.link
        if link is None or not self.is_open:
            return
        fields = {"consumer_id": self.id, "ack_type": kind, "message_id": ids, **bits(txn)}
        consumer = self.label
        facts = {**facts, "txn": txn}
        asked = len(self.client.tape.events)
        given_up = [] if txn is None else taken
        self.note(tape.ACKED, **facts)
        if not has_receipt:
            link.send(Type.ACK, **fields)
            return
        _, future = link.begin(Type.ACK, **fields)
        self.client.acking.set()

        def stored(done: asyncio.Future[Any]) -> None:
            error = done.exception()
            if error is not None and given_up and self.is_open and self.label == consumer:
                for found in given_up:  # It is for somebody else to acknowledge, or for later.
                    self.held.setdefault(found.position, found).left.update(found.left)
                self.client.arrived.set()
            if not isinstance(error, LinkLost):
                self.client.tape.note(
                    self.client.name, tape.ACK_STORED, topic=self.topic, subscription=self.subscription,
                    consumer=consumer, error=getattr(error, "error", ""), asked=asked, **facts,
                )  # fmt: skip

        future.add_done_callback(stored)

    def negative(self, positions: list[Position] | None) -> None:
        """Have these again, or everything that is not acknowledged."""
        link = self.link
        if link is None or not self.is_open:
            return
        fields: dict[str, Any] = {"consumer_id": self.id}
        if positions is None or self.has_active:
            positions = None
            self.held.clear()
            if self.has_active:
                self.epoch += 1
                fields["consumer_epoch"] = self.epoch
        else:
            for each in positions:
                self.held.pop(each, None)
            fields["message_ids"] = [
                pb.MessageIdData(ledgerId=each.ledger_id, entryId=each.entry_id) for each in positions
            ]
        self.note(tape.NACKED, positions=None if positions is None else [tuple(each) for each in positions])
        link.send(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, **fields)
