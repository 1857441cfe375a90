"""A simulated client: one connection at a time, its producers and consumers, and the steps of its script.

It comes back as official clients do: at once when its connection is gone or the broker closes one of its producers or consumers,
with longer and longer waits when that is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, Self

from tests.simulate import tape
from tests.simulate.actors.link import Command, Link, LinkLost, Refused, Type
from tests.simulate.actors.messages import Outgoing, chunk_of, entry_of, incoming
from tests.simulate.actors.slots import ConsumerSlot, ProducerSlot, Slot
from tests.simulate.actors.transactions import Transactions
from tests.simulate.loop import WALL_START_MS
from tests.simulate.script import Step
from tests.simulate.tape import Tape

from pybroker.model.names import TopicName
from pybroker.model.position import Position
from pybroker.wire import pulsar_api_pb2 as pb

SETTLE_S = 120.0
"""After so much virtual time a step waits no more for a producer or consumer to be open."""
NAMESPACE = "public/default"
NOT_STORED = "np"
"""So the names of non-persistent topics begin in scripts, which say nothing else of them."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 3.0


class Client:
    """Runs one script; `connect` makes a wire, or raises ConnectionError while nobody listens."""

    def __init__(
        self, name: str, connect: Callable[[], Any], tape_: Tape, chance: Random, wall_ms: Callable[[], int],
        topics: dict[str, dict[str, Any]], *, may_ack_parts: bool = True,
        sending: asyncio.Event | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.tape = tape_
        self.link: Link | None = None
        self._connect = connect
        self._chance = chance
        self._wall_ms = wall_ms
        self._topics = topics
        self._may_ack_parts = may_ack_parts
        self.sending = sending or asyncio.Event()
        """Set whenever something is sent; of many clients together."""
        self.acking = asyncio.Event()
        """Set whenever something is acknowledged with a receipt."""
        self._links = 0
        self._ids = 0
        self.slots: dict[str, Slot] = {}
        self._by_id: dict[int, Slot] = {}
        self._values = 0
        self._keys = 0
        self._watcher = 0
        self._work: asyncio.TaskGroup
        self._connecting: asyncio.Task[None] | None = None
        self._is_ended = False
        self._tokens = 0
        self._linked = asyncio.Event()
        self.arrived = asyncio.Event()
        self.transactions = Transactions(self)

    # --- life --------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._work = asyncio.TaskGroup()
        await self._work.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._is_ended = True
        for slot in self.slots.values():
            slot.is_wanted = False
            if slot.task is not None:
                slot.task.cancel()
        if self._connecting is not None:
            self._connecting.cancel()
        if self.link is not None:
            self.link.cut()
        await self._work.__aexit__(*exc)  # type: ignore[arg-type]

    def link_of(self, slot: Slot) -> Link | None:
        """The connection that a producer or consumer uses; None without one."""
        return self.link

    def broker_of(self, slot: Slot) -> str:
        """The broker to which a producer or consumer is attached, where there are several."""
        return ""

    def broken(self, rule: str, text: str) -> None:
        self.tape.note(self.name, tape.BROKEN, rule=rule, text=text)

    async def linked(self) -> Link:
        """A connection that is greeted."""
        while True:
            if self.link is not None and not self.link.is_lost:
                return self.link
            self._begin_connecting()
            await self._linked.wait()

    async def coordinator_link(self, coordinator: int, known: Link | None) -> Link:
        """A connection to the broker that runs that transaction coordinator; `known`: where it was last. Raises LinkLost
        and Refused.
        """
        return await self.linked()

    async def _ask(self, link: Link, command: int, **fields: Any) -> Command:
        """Raises LinkLost and Refused."""
        return await link.ask(command, **fields)

    def _begin_connecting(self) -> None:
        if (self._connecting is None or self._connecting.done()) and not self._is_ended:
            self._linked.clear()
            self._connecting = self._work.create_task(self._keep_connecting())

    async def _keep_connecting(self) -> None:
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                wire = await self._connect()
                self._links += 1
                link = Link(f"{self.name}/{self._links}", wire, self.tape, self.name, self)
                self._work.create_task(link.read())
                await link.greet()
            except (ConnectionError, LinkLost):
                await asyncio.sleep(wait_s * (0.9 + 0.2 * self._chance.random()))
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
                continue
            self.link = link
            break
        for slot in self.slots.values():
            self._begin_opening(slot)
        self._linked.set()

    def link_lost(self) -> None:
        self.link = None
        for slot in self.slots.values():
            slot.is_closed_early = not slot.is_open
            slot.lost("link")
        if not self._is_ended and any(slot.is_wanted for slot in self.slots.values()):
            self._begin_connecting()

    def _begin_opening(self, slot: Slot) -> None:
        if slot.is_wanted and not slot.is_open and (slot.task is None or slot.task.done()) and not self._is_ended:
            slot.task = self._work.create_task(self._keep_opening(slot))

    async def _keep_opening(self, slot: Slot) -> None:
        wait_s = _FIRST_WAIT_S
        while slot.is_wanted and not slot.is_open:
            try:
                link = await self.linked()
                await link.ask(Type.LOOKUP, topic=slot.topic)
                await slot.open()
            except LinkLost:
                pass
            except Refused as refused:
                if slot.refuse(refused.error):
                    return
            else:
                return
            await asyncio.sleep(wait_s * (0.9 + 0.2 * self._chance.random()))
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    # --- what the link tells -----------------------------------------------------------------------------------------

    def message(self, command: Command, entry: bytes) -> None:
        slot = self._by_id.get(command.message.consumer_id)
        if not isinstance(slot, ConsumerSlot):
            self.broken("messages", f"a MESSAGE for consumer {command.message.consumer_id}, who does not exist")
        elif slot.is_open:
            slot.message(command.message, entry)
            self.arrived.set()
        elif not isinstance(found := incoming(command.message, entry), str):
            slot.skipped_ranges(found)

    def receipt(self, command: Command) -> None:
        slot = self._by_id.get(command.send_receipt.producer_id)
        if isinstance(slot, ProducerSlot) and slot.is_open:
            slot.receipt(command.send_receipt)

    def send_error(self, command: Command) -> None:
        slot = self._by_id.get(command.send_error.producer_id)
        if isinstance(slot, ProducerSlot) and slot.is_open:
            slot.send_error(command.send_error)

    def closed_producer(self, producer_id: int) -> None:
        self._closed(producer_id)

    def closed_consumer(self, consumer_id: int) -> None:
        self._closed(consumer_id)

    def _closed(self, id_: int) -> None:
        slot = self._by_id.get(id_)
        if slot is not None:
            slot.is_closed_early = not slot.is_open
            slot.lost("broker")
            self._begin_opening(slot)

    def told(self, command: Command) -> None:
        if command.type == Type.ACTIVE_CONSUMER_CHANGE:
            slot = self._by_id.get(command.active_consumer_change.consumer_id)
            if isinstance(slot, ConsumerSlot):
                slot.note(tape.ACTIVE, is_active=command.active_consumer_change.is_active)

    # --- the script --------------------------------------------------------------------------------------------------

    async def run(self, steps: tuple[Step, ...]) -> None:
        for step in steps:
            try:
                await getattr(self, f"_do_{step.do}")(**step.facts)
            except (LinkLost, Refused):
                continue

    def topic(self, name: str, salt: str = "") -> str:
        """The full name of a topic of the script; of a partitioned one, one of its partitions."""
        if name.startswith(NOT_STORED):
            return f"non-persistent://{NAMESPACE}/{name}"
        partitions = self._topics.get(name, {}).get("partitions", 0)
        full = f"persistent://{NAMESPACE}/{name}"
        return f"{full}-partition-{sum(map(ord, self.name + salt)) % partitions}" if partitions else full

    async def _settled(self, slot: Slot | None) -> bool:
        """Wait until it is open; False when it will never be."""
        if slot is None:
            return False
        try:
            async with asyncio.timeout(SETTLE_S):
                await slot.settled.wait()
        except TimeoutError:
            if isinstance(slot, ProducerSlot) and slot.waits_for_its_turn:
                self.note_waited(slot)
            else:
                what = f"{type(slot).__name__} {slot.id} on {slot.topic} was not open after {SETTLE_S} s"
                self.broken("in time", what)
            slot.is_wanted = False
            return False
        return slot.is_open

    def note_waited(self, slot: ProducerSlot) -> None:
        """It has waited for exclusive access for a long time."""
        self.tape.note(self.name, tape.WAITED, topic=slot.topic, slot=f"{self.name}.{slot.id}")

    async def _open(self, name: str, slot: Slot) -> None:
        await self._close(name)
        self.slots[name] = self._by_id[slot.id] = slot
        self._begin_opening(slot)
        await self._settled(slot)

    def _new_id(self) -> int:
        self._ids += 1
        return self._ids

    async def _close(self, name: str) -> None:
        slot = self.slots.pop(name, None)
        if slot is None:
            return
        slot.is_wanted = False
        if slot.task is not None and not slot.task.done():
            slot.task.cancel()
        link = self.link_of(slot)
        if link is not None:
            is_producer = isinstance(slot, ProducerSlot)
            command = Type.CLOSE_PRODUCER if is_producer else Type.CLOSE_CONSUMER
            fields = {"producer_id" if is_producer else "consumer_id": slot.id}
            slot_was_open = slot.is_open
            if not is_producer:
                slot.lost("closed")
            if slot_was_open or slot.task is not None:
                try:
                    await link.ask(command, **fields)
                except (Refused, LinkLost):
                    pass
        slot.lost("closed")

    async def _do_wait(self, s: float) -> None:
        await asyncio.sleep(s)

    async def _do_cut(self, *, silently: bool = False) -> None:
        if self.link is not None:
            self.link.cut(silently=silently)
            await asyncio.sleep(0)

    async def _do_open_producer(self, slot: str, topic: str, **facts: Any) -> None:
        await self._open(slot, ProducerSlot(self, self._new_id(), self.topic(topic), facts))

    async def _do_close_producer(self, slot: str) -> None:
        await self._do_flush(slot)
        await self._close(slot)

    async def _do_flush(self, slot: str) -> None:
        found = self.slots.get(slot)
        if isinstance(found, ProducerSlot) and found.pending:
            if found.waits_for_its_turn:
                await self._settled(found)
            try:
                async with asyncio.timeout(SETTLE_S):
                    await found.emptied.wait()
            except TimeoutError:
                if found.waits_for_its_turn:
                    found.give_up("waited long enough")
                    return
                self.broken(
                    "in time", f"{found.session}: {len(found.pending)} messages were not answered in {SETTLE_S} s"
                )

    async def _do_send(
        self,
        slot: str,
        count: int,
        keys: int = 0,
        batch: int = 0,
        chunks: int = 0,
        delay_s: float = 0,
        txn: str | None = None,
    ) -> None:
        found = self.slots.get(slot)
        if not isinstance(found, ProducerSlot) or not await self._settled(found):
            return
        id_ = None
        if txn is not None:
            joined = self.transactions.find(txn)
            if joined is None:
                return
            await self.transactions.join_topic(joined, found.topic)
            id_ = joined.id
        for _ in range(count):
            self._values += 1
            value = f"{self.name}-{self._values}"
            sequence_id = found.next_sequence_id or 0
            now_ms = self._wall_ms()
            key = ""
            if keys:
                self._keys += 1
                key = f"k{self._keys % keys}"
            if chunks:
                found.next_sequence_id = sequence_id + 1
                for chunk in range(chunks):
                    entry = chunk_of(found.name, sequence_id, value, chunk, chunks, now_ms, id_)
                    found.send(Outgoing(sequence_id, [f"{value}/{chunk}"], "", entry, 1, chunk, txn=id_))
                continue
            values = [f"{value}.{index}" for index in range(batch)] if batch else [value]
            found.next_sequence_id = sequence_id + len(values)
            deliver_at_ms = now_ms + int(delay_s * 1000) if delay_s else 0
            entry = entry_of(
                found.name, sequence_id, values, key, now_ms, deliver_at_ms=deliver_at_ms, is_batch=bool(batch), txn=id_
            )
            deliver_at_s = (deliver_at_ms - WALL_START_MS) / 1000 if delay_s else 0
            found.send(Outgoing(sequence_id, values, key, entry, len(values), deliver_at_s=deliver_at_s, txn=id_))

    async def _do_subscribe(self, slot: str, topic: str, **facts: Any) -> None:
        name = self.topic(topic, facts["subscription"])
        await self._open(slot, ConsumerSlot(self, self._new_id(), name, facts))

    async def _do_close_consumer(self, slot: str) -> None:
        await self._close(slot)

    def _consumer(self, slot: str) -> ConsumerSlot | None:
        found = self.slots.get(slot)
        return found if isinstance(found, ConsumerSlot) else None

    async def _do_take(self, slot: str, count: int) -> None:
        found = self._consumer(slot)
        if found is None or not await self._settled(found):
            return
        before = len(found.seen)
        found.wanted_permits = count
        found.fill_permits()
        try:
            async with asyncio.timeout(0.5):
                while len(found.seen) - before < count:
                    found.got.clear()
                    await found.got.wait()
        except TimeoutError:
            pass

    async def _do_ack(self, slot: str, how: str, receipt: bool, txn: str | None = None) -> None:
        found = self._consumer(slot)
        id_ = None
        if found is not None and txn is not None:
            joined = self.transactions.find(txn)
            if joined is None or not found.is_open:
                return
            await self.transactions.join_subscription(joined, found.topic, found.subscription)
            id_ = joined.id
            if how == "again":
                # What another transaction, or the same, has acknowledged.
                if found.in_transactions:
                    found.acknowledge(list(found.in_transactions)[-3:], has_receipt=True, txn=id_)
                return
        if found is None or not found.held:
            return
        whole = list(found.held)
        batches = [each for each in found.held.values() if each.is_batch and len(each.left) > 1]
        if how == "cumulative" and found.has_active:
            found.acknowledge_up_to(whole[len(whole) // 2], has_receipt=receipt, txn=id_)
        elif how == "parts" and batches and self._may_ack_parts:
            held = batches[0]
            done = {index for index in held.left if index % 2 == 0} or set(held.left)
            found.acknowledge_parts(held, done, has_receipt=receipt, txn=id_)
        else:
            found.acknowledge(whole[::2] if how == "some" else whole, has_receipt=receipt, txn=id_)

    async def _do_begin(self, txn: str, coordinator: int, timeout_s: float) -> None:
        await self.transactions.begin(txn, coordinator, timeout_s)

    async def _do_end(self, txn: str, *, is_commit: bool, waits: bool) -> None:
        if waits:
            for name in list(self.slots):
                await self._do_flush(name)
        await self.transactions.end(txn, is_commit=is_commit)

    async def _do_forge(self, txn: str, **facts: bool) -> None:
        await self.transactions.forge(txn, **facts)

    async def _do_nack(self, slot: str, how: str) -> None:
        found = self._consumer(slot)
        if found is not None:
            found.negative(None if how == "all" else list(found.held)[::2])

    def disturbing(self, topic: str, subscription: str | None, how: str) -> str:
        """Something begins that may lose, repeat or reorder what others see there."""
        self._tokens += 1
        token = f"{self.name}-{self._tokens}"
        self.tape.note(self.name, tape.DISTURBING, token=token, topic=topic, subscription=subscription, how=how)
        return token

    def disturbed(self, token: str, *, is_done: bool) -> None:
        self.tape.note(self.name, tape.DISTURBED, token=token, is_done=is_done)

    async def _do_seek(self, slot: str, to: str) -> None:
        found = self._consumer(slot)
        if found is None or not found.is_open or self.link is None:
            return
        fields: dict[str, Any]
        target = found.seen[len(found.seen) // 2] if found.seen else Position(0, 0)
        if to == "time":
            fields = {"message_publish_time": self._wall_ms() - 500}
        elif to == "earliest" or not found.seen:
            fields = {"message_id": pb.MessageIdData(ledgerId=(1 << 64) - 1, entryId=(1 << 64) - 1)}
        elif to == "latest":
            fields = {"message_id": pb.MessageIdData(ledgerId=(1 << 63) - 1, entryId=(1 << 63) - 1)}
        else:
            fields = {"message_id": pb.MessageIdData(ledgerId=target.ledger_id, entryId=target.entry_id)}
        token = self.disturbing(found.topic, found.subscription, "seek")
        await self._to_its_end(token, Type.SEEK, consumer_id=found.id, **fields)

    async def _do_unsubscribe(self, slot: str) -> None:
        found = self._consumer(slot)
        if found is None or not found.is_open or self.link is None:
            return
        token = self.disturbing(found.topic, found.subscription, "unsubscribe")
        if await self._to_its_end(token, Type.UNSUBSCRIBE, consumer_id=found.id):
            found.is_wanted = False
            found.lost("unsubscribed")
            if found.task is not None:
                found.task.cancel()

    async def _to_its_end(self, token: str, command: int, **fields: Any) -> bool:
        """Ask for what disturbs; whether it was done. Without an answer nobody knows when it ends."""
        assert self.link is not None
        try:
            await self.link.ask(command, **fields)
        except Refused:
            self.disturbed(token, is_done=False)
            return False
        except LinkLost:
            return False
        self.disturbed(token, is_done=True)
        return True

    async def _do_last_id(self, slot: str) -> None:
        found = self._consumer(slot)
        if found is not None and found.is_open and self.link is not None:
            await self.link.ask(Type.GET_LAST_MESSAGE_ID, consumer_id=found.id)

    async def _do_stats(self, slot: str) -> None:
        found = self._consumer(slot)
        if found is not None and found.is_open and self.link is not None:
            await self.link.ask(Type.CONSUMER_STATS, consumer_id=found.id)

    async def _do_lookup(self, topic: str) -> None:
        await (await self.linked()).ask(Type.LOOKUP, topic=self.topic(topic))

    async def _do_partitions(self, topic: str) -> None:
        await (await self.linked()).ask(Type.PARTITIONED_METADATA, topic=f"persistent://{NAMESPACE}/{topic}")

    async def _do_topics(self) -> None:
        await (await self.linked()).ask(Type.GET_TOPICS_OF_NAMESPACE, namespace=NAMESPACE)

    async def _do_ping(self) -> None:
        (await self.linked()).send(Type.PING)

    async def _do_watch(self) -> None:
        link = await self.linked()
        self._watcher = self._new_id()
        pattern = f"persistent://{NAMESPACE}/t.*"
        await link.ask(Type.WATCH_TOPIC_LIST, watcher_id=self._watcher, namespace=NAMESPACE, topics_pattern=pattern)

    async def _do_unwatch(self) -> None:
        if self._watcher:
            await (await self.linked()).ask(Type.WATCH_TOPIC_LIST_CLOSE, watcher_id=self._watcher)

    async def _do_put_schema(self, topic: str, fields: int) -> None:
        shape = ",".join(f'{{"name":"f{index}","type":["null","int"],"default":null}}' for index in range(fields))
        schema = pb.Schema(
            name="s", type=pb.Schema.Avro, schema_data=f'{{"type":"record","name":"r","fields":[{shape}]}}'.encode()
        )
        await (await self.linked()).ask(
            Type.GET_OR_CREATE_SCHEMA, topic=f"persistent://{NAMESPACE}/{topic}", schema=schema
        )

    async def _do_get_schema(self, topic: str) -> None:
        await (await self.linked()).ask(Type.GET_SCHEMA, topic=str(TopicName.parse(self.topic(topic))))
