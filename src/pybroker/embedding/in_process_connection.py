"""A client's connection to an embedded broker, with faults and the advanced time of the broker.

Invariants: without a fault, and with the machine's time, all data takes the normal path. Delayed data keeps its order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVarTuple

from pybroker.broker.publishing.publish_checks import rows
from pybroker.dispatch.dispatcher import Delivery
from pybroker.embedding.faults import Faults, Line
from pybroker.errors import BrokerError, InvalidTopicName, ProtocolViolation
from pybroker.model.events import Ack, SendRun
from pybroker.model.names import TopicName
from pybroker.runtime.runtime import Runtime
from pybroker.server.connection import Connection
from pybroker.server.server_context import ServerContext
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire import replies
from pybroker.wire.commands import Event
from pybroker.wire.entry_builder import framed
from pybroker.wire.session import SessionState
from pybroker.wire.stored_entry import split_entry

if TYPE_CHECKING:
    from pybroker.broker.delivery.consumer import Consumer
    from pybroker.embedding.virtual_time import MovedClock

_HOLD_STALLED = 1 << 16  # an additional reason not to read from the socket
_SEND = pb.BaseCommand.SEND
_ACK = pb.BaseCommand.ACK

Received = TypeVarTuple("Received")


class EmbeddedConnection(Connection, Line):
    """A client's connection to an embedded broker. It applies the active faults."""

    def __init__(self, context: ServerContext, faults: Faults, clock: MovedClock) -> None:
        super().__init__(context)
        self._faults = faults
        self._clock = clock
        self._is_stalled = False
        self._is_again = False
        self._unsent: deque[Callable[[], None]] = deque()  # calls deferred while the connection is stalled
        self._receipts = LateCalls(self.runtime)
        self._slow: dict[int, LateCalls] = {}  # by consumer id

    # --- operations of faults -----------------------------------------------------------------------------------------

    def topics(self) -> Iterable[str]:
        for opened in self.producers.values():
            if opened is not None:
                yield str(opened.topic.name)
        for consumer in self.consumers.values():
            if consumer is not None:
                yield str(consumer.subscription.topic.name)

    def names(self) -> Iterable[str]:
        for opened in self.producers.values():
            if opened is not None:
                yield opened.producer.name
        for consumer in self.consumers.values():
            if consumer is not None:
                yield consumer.name
        yield self.client_version

    def drop(self) -> None:
        self.abort("dropped by a test")

    def stall(self) -> None:
        self._is_stalled = True
        self._pauses.add(_HOLD_STALLED)

    def unstall(self) -> None:
        self._is_stalled = False
        while self._unsent:
            self._unsent.popleft()()
        self._pauses.remove(_HOLD_STALLED)

    def hurry_receipts(self) -> None:
        self._receipts.hurry()

    def hurry_messages(self) -> None:
        for waiting in list(self._slow.values()):
            waiting.hurry()

    def connection_lost(self, error: Exception | None) -> None:
        self._unsent.clear()
        for waiting in (self._receipts, *self._slow.values()):
            waiting.drop()
        super().connection_lost(error)

    # --- commands ----------------------------------------------------------------------------------------------------

    def _command(self, command: pb.BaseCommand) -> None:
        handler = self.context.command_table.get(command.type)
        refusal = None
        if handler is not None and self._faults.touches_commands:
            refusal = self._faults.refusal_of(command.type, _topic_of(command, handler.field), self)
        if refusal is None or handler is None:
            super()._command(command)
            return
        self.session.require_legal(command.type)
        if command.type == pb.BaseCommand.CONNECT:
            self.context.introduced(self)
            self.send(replies.error(replies.NO_REQUEST_ID, refusal))
            self.close(f"refused: {refusal}")
        else:
            self.send(_refused(command, handler.field, handler.request_id(command), refusal))

    def _take(self, decode: Callable[[*Received], list[Event]], *received: *Received) -> None:
        if self._clock.added_ms and not self._is_again:
            super()._take(lambda *data: [self._moved(event) for event in decode(*data)], *received)
        else:
            super()._take(decode, *received)

    def _take_deferred(self) -> None:
        self._is_again = True  # its time was changed when it arrived
        try:
            super()._take_deferred()
        finally:
            self._is_again = False

    def _moved(self, event: Event) -> Event:
        if isinstance(event, SendRun):
            event.payloads = [moved(payload, int(self._clock.added_ms)) for payload in event.payloads]
            event.size_bytes = sum(map(len, event.payloads))
        return event

    def _publish(self, run: SendRun) -> None:
        opened = self.producers.get(run.producer_id)
        if opened is not None and self._faults.touches_commands and self.session.state is SessionState.CONNECTED:
            passing = []
            for index, sequence_id in enumerate(run.sequence_ids):
                refusal = self._faults.refusal_of(_SEND, str(opened.topic.name), self)
                if refusal is None:
                    passing.append(index)
                else:
                    self.send_errors(run.producer_id, [sequence_id], refusal, 0)
            if not passing:
                return
            if len(passing) < len(run.sequence_ids):
                run = rows(run, passing)
        super()._publish(run)

    def _acknowledge(self, ack: Ack) -> None:
        consumer = self.consumers.get(ack.consumer_id)
        topic = "" if consumer is None else str(consumer.subscription.topic.name)
        refusal = self._faults.refusal_of(_ACK, topic, self) if consumer is not None else None
        if refusal is None:
            super()._acknowledge(ack)
        elif ack.request_id >= 0:
            self.send_ack_response(ack.consumer_id, ack.request_id, refusal)

    # --- data to the client -------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        if self._is_stalled:
            self._unsent.append(partial(self.send, data))
        else:
            super().send(data)

    def send_receipts(self, run: SendRun, ledger_id: int, first_entry_id: int) -> None:
        if not self._faults.touches_receipts and not self._receipts:
            super().send_receipts(run, ledger_id, first_entry_id)
            return
        self._published(len(run.sequence_ids), run.size_bytes)
        opened = self.producers.get(run.producer_id)
        topic = "" if opened is None else str(opened.topic.name)
        for index, sequence_id in enumerate(run.sequence_ids):
            highest = [run.highest_sequence_ids[index]]
            receipt = replies.send_receipts(run.producer_id, [sequence_id], highest, ledger_id, first_entry_id + index)
            fault = self._faults.receipt_of(topic, self)
            copies, delay_s = (1, 0.0) if fault is None else (fault.copies, fault.delay_s)
            if copies and (delay_s > 0 or self._receipts):
                self._receipts.add(partial(self.send, receipt * copies), delay_s)
            elif copies:
                self.send(receipt * copies)

    def send_messages(self, consumer_id: int, delivery: Delivery, consumer_epoch: int, partition: int) -> None:
        if self._is_stalled:
            self._unsent.append(partial(self.send_messages, consumer_id, delivery, consumer_epoch, partition))
            return
        seconds_each, waiting = 0.0, self._slow.get(consumer_id)
        consumer = self.consumers.get(consumer_id)
        if consumer is not None:
            subscription = consumer.subscription
            seconds_each = self._faults.seconds_each(str(subscription.topic.name), subscription.name, self)
        if not seconds_each and not waiting:
            super().send_messages(consumer_id, delivery, consumer_epoch, partition)
            return
        if waiting is None:
            waiting = self._slow[consumer_id] = LateCalls(self.runtime)
        for index in range(len(delivery.entry_ids)):
            one = _one_of(delivery, index)
            send = partial(self._send_late, consumer, consumer_id, one, consumer_epoch, partition)
            waiting.add(send, seconds_each, after_last=True)

    def _send_late(
        self, consumer: Consumer | None, consumer_id: int, delivery: Delivery, consumer_epoch: int, partition: int
    ) -> None:
        if self.consumers.get(consumer_id) is consumer:  # otherwise its entries belong to other consumers now
            super().send_messages(consumer_id, delivery, consumer_epoch, partition)


def _one_of(delivery: Delivery, index: int) -> Delivery:
    part = slice(index, index + 1)
    redelivery_counts, ack_sets = delivery.redelivery_counts, delivery.ack_sets
    return Delivery(
        delivery.consumer,
        delivery.ledger_id,
        delivery.entry_ids[part],
        delivery.payloads[part],
        delivery.message_counts[part],
        delivery.message_counts[index],
        None if redelivery_counts is None else redelivery_counts[part],
        None if ack_sets is None else ack_sets[part],
    )


def _topic_of(command: pb.BaseCommand, field: str) -> str:
    message: Any = getattr(command, field)
    try:
        return str(TopicName.parse(str(message.topic)))
    except (AttributeError, InvalidTopicName):
        return ""


def _refused(command: pb.BaseCommand, field: str, request_id: int, refusal: BrokerError) -> bytes:
    reply = pb.BaseCommand()
    answer = field.removesuffix("Request") + "Response"
    response: Any = getattr(reply, answer, None)
    code, text = replies.code_and_text(refusal)
    if response is None or not (hasattr(response, "error") or hasattr(response, "error_code")):
        return replies.error(request_id, refusal)
    type_name = pb.BaseCommand.Type.Name(command.type).removesuffix("_REQUEST") + "_RESPONSE"
    reply.type = pb.BaseCommand.Type.Value(type_name)  # type: ignore[assignment]
    response.request_id = request_id
    if hasattr(response, "error_code"):
        response.error_code, response.error_message = code, text
    else:
        response.error, response.message = code, text
    if hasattr(response, "response"):
        response.response = response.Failed
    return replies.frame(reply)


def moved(entry: bytes, added_ms: int) -> bytes:
    """Return `entry` with its publish time and delivery time, which the client has set, moved by `added_ms`
    milliseconds. An invalid entry is returned unchanged; the broker rejects it later.
    """
    try:
        metadata, payload = split_entry(entry)
    except ProtocolViolation:
        return entry
    metadata.publish_time += added_ms
    if metadata.HasField("deliver_at_time"):
        metadata.deliver_at_time += added_ms
    return framed(metadata, payload)


class LateCalls:
    """Calls that are made later, by the broker's clock, in the order in which they were added."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._waiting: deque[Callable[[], None]] = deque()
        self._last_due_ms = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, call: Callable[[], None], delay_s: float, *, after_last: bool = False) -> None:
        """Call the function `call` after `delay_s` seconds, and not before the functions that were added earlier. The
        delay begins now or, with `after_last`, at the planned time of the function that was added last.
        """
        now_ms = self._runtime.clock.monotonic_ms()
        begin_ms = max(now_ms, self._last_due_ms) if after_last else now_ms
        self._last_due_ms = max(self._last_due_ms, begin_ms + delay_s * 1000)
        self._waiting.append(call)
        self._runtime.call_later((self._last_due_ms - now_ms) / 1000, partial(self._due, call))

    def _due(self, call: Callable[[], None]) -> None:
        if self._waiting and self._waiting[0] is call:  # otherwise `hurry` has made it, and others wait now
            self._waiting.popleft()()

    def hurry(self) -> None:
        self._last_due_ms = 0.0
        while self._waiting:
            self._waiting.popleft()()

    def drop(self) -> None:
        self._waiting.clear()
