"""One client connection: receives bytes, calls producers and consumers, and sends replies.

The connection is a fault boundary: an error closes at most this connection, gets an error response, and is logged once.
Back-pressure pauses reading (`read_pauses.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVarTuple, cast

from pybroker.auth.authentication import Identity, PeerCertificate
from pybroker.auth.refused_accesses import Interface, RefusedAccess, cause_of
from pybroker.auth.server_tls import peer_certificate
from pybroker.broker.context.peer import MemoryWaits, Peer, ThrottledPublish
from pybroker.broker.delivery.consumer import Consumer
from pybroker.broker.limits.publish_rate_limit import PublishWaiter, WaitingPublishers
from pybroker.broker.limits.publish_throttle import PublishThrottle
from pybroker.broker.publishing.publish_checks import rows
from pybroker.dispatch.dispatcher import Delivery
from pybroker.errors import BrokerError, ConsumerNotFound, ProtocolViolation, StorageFull, StoreError, UnknownError
from pybroker.model.events import Ack, CommandRefused, Flow, Redeliver, SendRefused, SendRun
from pybroker.model.position import from_wire
from pybroker.runtime import logs
from pybroker.runtime.tasks import TaskOwner
from pybroker.server import read_pauses
from pybroker.server.handler import Handler, type_name, weight_of
from pybroker.server.open_producer import OpenProducer, RecentIds, producer_success
from pybroker.server.outbox import JOIN_BELOW_BYTES, Outbox
from pybroker.server.outbox_shares import WATCHED_BYTES
from pybroker.server.pending_authentication import PendingAuthentication
from pybroker.server.pending_setups import PendingSetups
from pybroker.server.read_pauses import ReadPauses
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire import replies
from pybroker.wire.commands import Decoder, Event
from pybroker.wire.many_ids import NO_MORE, ManyIds, Slice
from pybroker.wire.session import KeepAlive, Session, SessionState

if TYPE_CHECKING:
    from pybroker.broker.lifecycle.watched_topics import TopicWatcher
    from pybroker.runtime.proxy_protocol import Address
    from pybroker.server.server_context import ServerContext

Received = TypeVarTuple("Received")


class Connection(Peer, PublishWaiter, asyncio.BufferedProtocol):
    """The asyncio protocol of one client. The server context owns it from `connection_made` to `connection_lost`.

    Invariants: `_pending_publishes` counts sends that topics have received and not answered. While a message waits for
    a publish limit, or a long id list is processed, all later events are queued in `_deferred`, in order.
    """

    def __init__(self, context: ServerContext) -> None:
        self.context = context
        self.broker = context.broker
        self.runtime = context.runtime
        self.session = Session()
        self.identity: Identity | None = None
        self.is_of_proxy = False
        """A proxy opened the connection, and named its client without forwarding the client's credentials."""
        self.listener_name: str | None = None
        """Listener of the port (`bindAddresses`), for lookups that request none."""
        self.proxied_client: Address | None = None
        """Address of the client from the PROXY header of a load balancer."""
        self.address = ""
        self.host = ""
        self.waits_since_s = context.now_s()
        """Since when the broker waits for the next command of an unauthenticated client, in seconds."""
        self.early_pings = 0  # PINGs before CONNECT
        self.client_version = ""
        self.role = None
        self.features = pb.FeatureFlags()
        self.authentication: PendingAuthentication | None = None
        self.certificate: PeerCertificate | None = None
        self.producers: dict[int, OpenProducer | None] = {}  # None during setup
        self.waiting_producers: dict[int, OpenProducer] = {}  # for exclusive access
        self.consumers: dict[int, Consumer | None] = {}
        self.producer_set_ups = PendingSetups(self.producers)
        self.consumer_set_ups = PendingSetups(self.consumers)
        self.topic_watchers: dict[int, TopicWatcher] = {}
        self.watchers_being_opened: set[int] = set()
        """Ids of topic list watchers whose permission is being checked."""
        self.tasks = TaskOwner("connection")
        self.memory_waits = MemoryWaits()
        self.list_turn = asyncio.Lock()  # locked while a topic list is built
        self.close_reason = ""
        self._requests = 0  # weight of running requests
        self._decoder = Decoder()
        self._closed_producers = RecentIds()
        self._pending_publishes = 0
        self._not_stored_in_turn = 0  # non-persistent messages of this event loop iteration
        self._deferred: list[Event] = []
        self._held_by: WaitingPublishers | None = None  # queue of the first deferred event
        self._held_producer: OpenProducer | None = None  # producer of the first deferred event
        self._many_ids: Iterator[Slice] | None = None  # id list in process; precedes `_deferred`
        self._is_watched = False  # unsent data exceeds WATCHED_BYTES
        self.is_writable = True  # the client reads
        self._alive_waiters, self.room_waiters = _Waiters(), _Waiters()  # for received data; for free outbox space
        self._transport: asyncio.Transport
        self._outbox: Outbox
        self._pauses: ReadPauses

    # --- transport ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._outbox = Outbox(self.context.loop, self._transport, self.broker.broker_context.pumps)
        self._pauses = ReadPauses(self._transport)
        self._transport.set_write_buffer_limits(high=min(WATCHED_BYTES, self.context.max_outbound_bytes))
        peer = self.proxied_client or self._transport.get_extra_info("peername") or ("unknown", 0)
        host, port = peer[:2]
        self.host = str(host)
        # As in Pulsar: Java's form of an address, and without the slash if it comes from a PROXY header.
        self.address = f"{'' if self.proxied_client else '/'}{host}:{port}"
        self.certificate = peer_certificate(self._transport.get_extra_info("ssl_object"))
        self.context.opened(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.session.move_to(SessionState.CLOSED)
        self._detach_all()
        self._alive_waiters.wake()
        self._deferred.clear()
        self._many_ids = None
        self._decoder.release()  # Explicit: the garbage collector may run hours later.
        self.context.frames.count(self, self._decoder)
        if self._held_by is not None:
            self._held_by.leave(self)
            self._held_by = self._held_producer = None
        self.context.closed(self, self.close_reason or (str(error) if error else "by the client"))

    def _detach_all(self) -> None:
        for opened in list(self.producers.values()):
            if opened is not None:
                opened.detach()
        for waiting in list(self.waiting_producers.values()):
            waiting.detach()
        for consumer in list(self.consumers.values()):
            if consumer is not None:
                consumer.detach()
        for watcher in self.topic_watchers.values():
            self.broker.topic_watchers.close(watcher)
        self.producers.clear()
        self.waiting_producers.clear()
        self.consumers.clear()
        self.topic_watchers.clear()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.buffer(self.context.receive_buffer)

    def buffer_updated(self, size_bytes: int) -> None:
        self.session.has_heard = True
        if self._alive_waiters.events:
            self._alive_waiters.wake()
        decoder = self._decoder
        context = self.context
        if (
            self.session.state is SessionState.CONNECTING
            and not decoder.missing_bytes
            and not context.paced_setups.admit()
        ):
            decoder.hold(context.receive_buffer, size_bytes)
            context.frames.count(self, decoder)
            self._pauses.add(read_pauses.BUDGET)
            context.paced_setups.wait(self._go_on)
            return
        self._take(decoder.received, context.receive_buffer, size_bytes)
        frames = context.frames
        if decoder.holds_large_frame or self.session.state is not SessionState.CONNECTED or self in frames.counted:
            frames.count(self, decoder)
        if decoder.has_more or size_bytes >= self.context.read_budget_bytes:
            # Yield: libuv would read up to 32 buffers from this socket before it serves others.
            self._pauses.add(read_pauses.BUDGET)
            self.context.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Decode buffered data, a limited amount per iteration of the event loop. Resume reading when the buffer is
        empty.
        """
        if self._decoder.has_more and self.session.state is not SessionState.CLOSED:
            self._take(self._decoder.feed, b"")
            frames = self.context.frames
            if self in frames.counted:
                frames.count(self, self._decoder)
        if self._decoder.has_more and self.session.state is not SessionState.CLOSED:
            self.context.loop.call_soon(self._go_on)
        else:
            self._pauses.remove(read_pauses.BUDGET)

    def _take(self, decode: Callable[[*Received], list[Event]], *received: *Received) -> None:
        """Decode `received` and process its events. This is the fault boundary for all client input."""
        try:
            events = iter(decode(*received))
            if self._deferred or self._many_ids is not None:
                self._deferred += events
            for event in events:
                if isinstance(event, SendRun):
                    self._publish(event)
                    if self._deferred:
                        self._deferred += events
                elif isinstance(event, Flow):
                    self._flow(event)
                elif isinstance(event, Ack):
                    self._acknowledge(event)
                elif isinstance(event, SendRefused):
                    self._require_connected("SEND")
                    self.send_errors(event.producer_id, [event.sequence_id], event.error, 0)
                elif isinstance(event, ManyIds):
                    self._begin_many_ids(event)
                    self._deferred += events
                elif isinstance(event, CommandRefused):
                    self._require_connected("this")
                    self.send_error(event.command, event.request_id, event.error)
                else:
                    self._command(event)
                if self.session.state is SessionState.CLOSED:
                    return
        except Exception as failure:  # noqa: BLE001  (a fault boundary)
            self._failed(failure)

    def _failed(self, failure: Exception) -> None:
        if isinstance(failure, ProtocolViolation):
            self._violated("any", failure)
            return
        self.runtime.stats.bugs += 1
        logs.error("connection.failed", connection=self.address, exc_info=failure)
        self.close("internal error")

    def _violated(self, command: str, violation: ProtocolViolation) -> None:
        self.refused(command, violation)
        self.close(f"protocol violation: {violation}")

    def refused(self, command: str, failure: Exception, topic: str = "", count: int = 1) -> None:
        """Count and log `count` rejected commands. The caller sends the error response."""
        reason = f"{failure} ({failure.__cause__})" if failure.__cause__ is not None else str(failure)
        self.context.refused(self, command, type(failure).__name__, reason, topic, count)
        cause = cause_of(failure)
        if cause is not None:
            self.broker.refused_accesses.record(
                RefusedAccess(
                    Interface.BINARY,
                    cause,
                    self.principal,
                    self.host,
                    command,
                    topic,
                    type(failure).__name__,
                    reason,
                )
            )

    def send_error(self, command: str, request_id: int, failure: BrokerError, topic: str = "") -> None:
        self.refused(command, failure, topic)
        self.send(replies.error(request_id, failure))

    def eof_received(self) -> bool:
        """Close the connection with `abort`, because the client has closed its side; `close` would wait until the
        client has read the queued data.

        Return False if the connection is closed now. If many clients disconnect at once, return True, so that asyncio keeps
        the transport, and close the connection in a later iteration of the event loop.
        """
        paced = self.context.paced_setups
        if paced.admit() or self._transport.get_extra_info("sslcontext") is not None:
            self.abort("by the client")  # TLS allows no half-closed connection
            return False
        paced.wait(self._ended_by_client)
        return True

    def _ended_by_client(self) -> None:
        if self in self.context.connections:
            self.abort("by the client")

    def pause_writing(self) -> None:
        self._is_watched = True
        self._report_unsent()

    def resume_writing(self) -> None:
        self._is_watched = False
        self.context.report_unsent(self, 0)
        if not self.is_writable:
            self.context.unstalled(self)
            self._pauses.remove(read_pauses.OUTBOUND)
            self._set_writable(True)

    def _report_unsent(self) -> None:
        if self not in self.context.connections:
            return  # aborted above
        if not self.context.report_unsent(self, self._outbox.size_bytes) and self.is_writable:
            self.context.stalled(self)
            self._set_writable(False)

    def _set_writable(self, is_writable: bool) -> None:
        self.is_writable = is_writable
        self.full_since_ms = None if is_writable else self.runtime.clock.monotonic_ms()
        if is_writable:
            self.room_waiters.wake()
        for consumer in self.consumers.values():
            if consumer is not None:
                consumer.set_writable(is_writable)

    @property
    def unsent_bytes(self) -> int:
        return self._outbox.size_bytes

    @property
    def not_heard_because(self) -> str | None:
        return self._pauses.in_words

    @property
    def throttled_by(self) -> ThrottledPublish | None:
        return None if self._held_producer is None else self._held_producer.throttled_by(self._held_by)

    def hold_publish_memory(self, is_held: bool) -> None:
        self.memory_waits.publishes_since_ms = self.context.now_s() * 1000 if is_held else None
        (self._pauses.add if is_held else self._pauses.remove)(read_pauses.PUBLISH_MEMORY)

    def hold_for_stop(self) -> None:
        self._pauses.add(read_pauses.STOP)

    def close(self, reason: str) -> None:
        if self.session.state is SessionState.CLOSED:
            return
        self.session.move_to(SessionState.CLOSED)
        self.close_reason = reason
        self._outbox.flush()
        self._transport.close()
        # Detach even if the client never reads. Deferred, because the caller may still use the producers and consumers.
        self.context.loop.call_soon(self._detach_all)

    def abort(self, reason: str) -> None:
        self.session.move_to(SessionState.CLOSED)
        self.close_reason = self.close_reason or reason
        self._detach_all()  # Now, not in `connection_lost`: other clients may wait for this.
        self._transport.abort()

    # --- hot commands ------------------------------------------------------------------------------------------------

    def _require_connected(self, command: str) -> None:
        if self.session.state is not SessionState.CONNECTED:
            raise ProtocolViolation(
                f"the client sent {command} in the session state {self.session.state.value}, which does not permit it"
            )

    def _publish(self, run: SendRun) -> None:
        if self.session.state is not SessionState.CONNECTED:
            self._require_connected("SEND")
        opened = self.producers.get(run.producer_id)
        if opened is None:
            if run.producer_id in self._closed_producers:
                return  # The client sent this before it received CLOSE_PRODUCER, and will send it again.
            raise ProtocolViolation(
                f"SEND for unknown producer id {run.producer_id}: the producer does not exist on this connection"
            )
        topic = opened.topic
        throttle = topic.publish_throttle
        if throttle is not None and (passing := throttle.admit(run)) < len(run.payloads):
            run = self._defer(run, passing, throttle, opened)
            if not run.payloads:
                return
        self._pending_publishes += len(run.sequence_ids)
        if self._pending_publishes >= self.context.max_pending_publishes:
            self._pauses.add(read_pauses.PENDING_PUBLISHES)
        if self.context.memory.publishes.fill(run.size_bytes):
            self.context.hold_publisher(self)
        topic.publish(opened.producer, run)

    def _defer(self, run: SendRun, passing: int, throttle: PublishThrottle, opened: OpenProducer) -> SendRun:
        """Return the first `passing` messages of `run`. Defer the rest until the publish limit allows them, and pause
        reading.
        """
        self._deferred.append(rows(run, range(passing, len(run.payloads))))
        self._pauses.add(read_pauses.PUBLISH_RATE)
        self._held_by, self._held_producer = throttle.wait(self), opened
        return rows(run, range(passing))

    def publish_again(self) -> None:
        self._held_by = self._held_producer = None
        self._take_deferred()
        if self._held_by is None:
            self._pauses.remove(read_pauses.PUBLISH_RATE)

    def _take_deferred(self) -> None:
        events, self._deferred = self._deferred, []
        if self.session.state is not SessionState.CLOSED:
            self._take(list, events)

    def _published(self, count: int, size_bytes: int) -> None:
        self._pending_publishes -= count
        if (
            self._pauses.reasons & read_pauses.PENDING_PUBLISHES
            and self._pending_publishes <= self.context.max_pending_publishes // 2
        ):
            self._pauses.remove(read_pauses.PENDING_PUBLISHES)
        context = self.context
        settled = context.memory.publishes.count(-size_bytes)
        if settled is not None:
            context.memory.follow(settled)
        if context.held_publishers:
            context.publish_memory_freed()

    def _flow(self, flow: Flow) -> None:
        self._require_connected("FLOW")
        consumer = self.consumers.get(flow.consumer_id)
        if consumer is not None:
            consumer.flow(flow.permits)

    def _acknowledge(self, ack: Ack) -> None:
        self._require_connected("ACK")
        consumer = self.consumers.get(ack.consumer_id)
        if consumer is not None:
            consumer.subscription.acknowledge(consumer, ack)
        elif ack.request_id >= 0:
            # The broker closed the consumer while the ACK was in transit.
            self.send_ack_response(ack.consumer_id, ack.request_id, ConsumerNotFound(f"no consumer {ack.consumer_id}"))

    def _begin_many_ids(self, ids: ManyIds) -> None:
        """Process a long id list in slices, one per event loop iteration. Later commands of the client are deferred."""
        self._require_connected(ids.command)
        self._many_ids = ids.slices()
        self._pauses.add(read_pauses.MANY_IDS)
        self.context.loop.call_soon(self._go_on_with_ids)

    def _go_on_with_ids(self) -> None:
        if self._many_ids is None or self.session.state is SessionState.CLOSED:
            return
        try:
            part = next(self._many_ids, NO_MORE)
            if isinstance(part, Ack):
                self._acknowledge(part)
            elif isinstance(part, Redeliver):
                self._redeliver(part)
            if part is not NO_MORE:
                self.context.loop.call_soon(self._go_on_with_ids)
                return
        except Exception as failure:  # noqa: BLE001  (a fault boundary)
            self._failed(failure)
        self._many_ids = None
        self._take_deferred()
        if self._many_ids is None:
            self._pauses.remove(read_pauses.MANY_IDS)

    def _redeliver(self, asked: Redeliver) -> None:
        consumer = self.consumers.get(asked.consumer_id)
        if consumer is not None:
            positions = [from_wire(ledger_id, entry_id) for ledger_id, entry_id in asked.positions]
            consumer.subscription.redeliver(consumer, positions or None, asked.epoch)
            if consumer.subscription.type_name in ("Exclusive", "Failover"):
                self._many_ids = iter(())  # One REDELIVER returns all messages; skip the other slices.

    # --- all other commands ------------------------------------------------------------------------------------------

    def _command(self, command: pb.BaseCommand) -> None:
        self.session.require_legal(command.type)
        handler = self.context.command_table[command.type]
        if handler.is_inline:
            handler.run_inline(self, command)
            return
        weight = weight_of(command)
        self._requests += weight
        if self._requests >= self.context.max_concurrent_requests:
            self._pauses.add(read_pauses.REQUESTS)
        self.tasks.start(self._run(handler, command, weight), handler.name)

    async def _run(self, handler: Handler[Connection], command: pb.BaseCommand, weight: int) -> None:
        try:
            await handler.run(self, command)
        except ProtocolViolation as violation:
            self._violated(type_name(command), violation)
        except Exception as failure:  # noqa: BLE001  (a fault boundary)
            error, topic = self.answerable(failure), handler.topic(command)
            self.send_error(type_name(command), handler.request_id(command), error, topic)
        finally:
            # Not when TaskOwner removes the task, one iteration later: then no event would remove the pause.
            self._count_answered(weight)

    def _count_answered(self, weight: int) -> None:
        self._requests -= weight
        if self._requests <= self.context.max_concurrent_requests // 2:
            self._pauses.remove(read_pauses.REQUESTS)

    @contextmanager
    def uncounted_request(self) -> Iterator[None]:
        """Exclude a waiting request from `maxConcurrentRequestsPerConnection` within this context, so that the broker
        continues to read the connection.
        """
        self._count_answered(1)
        try:
            yield
        finally:
            self._requests += 1

    def answerable(self, failure: Exception) -> BrokerError:
        """Convert an exception to the error that is sent to the client. Unexpected exceptions are logged."""
        if isinstance(failure, BrokerError):
            return failure
        if isinstance(failure, StoreError):
            # The store logs a full disk, once per change of state; its clients repeat refused requests.
            if not isinstance(failure, StorageFull):
                logs.warning("storage.failed", connection=self.address, error=str(failure))
            return failure.answer()
        self.runtime.stats.bugs += 1
        logs.error("request.failed", connection=self.address, exc_info=failure)
        return UnknownError(f"internal error: {type(failure).__name__}")

    def send(self, data: bytes) -> None:
        if self.session.state is not SessionState.CLOSED:
            self._outbox.add(data)
            if self._is_watched and len(data) >= JOIN_BELOW_BYTES:
                self._report_unsent()
            # Reading continues while the client does not read, to detect its disconnect. Its unread responses are
            # limited.
            if not self.is_writable and self._outbox.size_bytes > 2 * self.context.max_outbound_bytes:
                self._pauses.add(read_pauses.OUTBOUND)

    def forget_producer(self, producer_id: int) -> None:
        """Remove a producer that the broker closed. Its messages in transit are dropped without a response."""
        if self.producers.pop(producer_id, None) is not None:
            self._closed_producers.add(producer_id)

    def tell_ready(self, opened: OpenProducer) -> None:
        """Send PRODUCER_SUCCESS for an attached producer, and accept its messages."""
        producer = opened.producer
        self.producers[producer.producer_id] = opened
        self._closed_producers.discard(producer.producer_id)  # the client has reused the id
        if self.context.is_logged(self, "producer.created", str(opened.topic.name)):
            logs.info("producer.created", topic=opened.topic.name, producer=producer.name, connection=self.address)
        self.send(producer_success(producer.request_id, opened))

    # --- peer --------------------------------------------------------------------------------------------------------

    def send_receipts(self, run: SendRun, ledger_id: int, first_entry_id: int) -> None:
        sequence_ids = run.sequence_ids
        self._published(len(sequence_ids), run.size_bytes)
        self.send(
            replies.send_receipts(run.producer_id, sequence_ids, run.highest_sequence_ids, ledger_id, first_entry_id)
        )

    def admit_not_stored(self, count: int) -> int:
        if not self._not_stored_in_turn:
            self.context.loop.call_soon(self._turn_ended)
        # Pulsar's limit also admits one message more than configured.
        taken = max(0, min(count, self.context.max_not_stored_at_once + 1 - self._not_stored_in_turn))
        self._not_stored_in_turn += count
        return taken

    def _turn_ended(self) -> None:
        self._not_stored_in_turn = 0

    def send_receipts_not_stored(self, run: SendRun, id_part: int) -> None:
        sequence_ids = run.sequence_ids
        self._published(len(sequence_ids), run.size_bytes)
        self.send(replies.send_receipts_of_one_id(run.producer_id, sequence_ids, run.highest_sequence_ids, id_part))

    def send_errors(self, producer_id: int, sequence_ids: list[int], error: BrokerError, size_bytes: int) -> None:
        if size_bytes:
            self._published(len(sequence_ids), size_bytes)
        opened = self.producers.get(producer_id)
        self.refused("SEND", error, "" if opened is None else str(opened.topic.name), len(sequence_ids))
        for sequence_id in sequence_ids:
            self.send(replies.send_error(producer_id, sequence_id, error))

    def sends_dropped(self, run: SendRun, reason: BrokerError) -> None:
        self._published(len(run.sequence_ids), run.size_bytes)

    def send_messages(self, consumer_id: int, delivery: Delivery, consumer_epoch: int, partition: int) -> None:
        if self.session.state is SessionState.CLOSED:
            return
        parts, size_bytes, largest_bytes = replies.messages(
            consumer_id,
            delivery.ledger_id,
            delivery.entry_ids,
            delivery.payloads,
            delivery.redelivery_counts,
            delivery.ack_sets,
            consumer_epoch,
            partition,
        )
        self._outbox.add_parts(parts, size_bytes, largest_bytes)
        if self._is_watched:
            self._report_unsent()

    def send_ack_response(self, consumer_id: int, request_id: int, error: BrokerError | None) -> None:
        if error is not None:
            self.refused("ACK", error)
        self.send(replies.ack_response(consumer_id, request_id, error))

    def close_producer(self, producer_id: int) -> None:
        self.forget_producer(producer_id)
        self.send(replies.close_producer(producer_id))

    def producer_ready(self, producer_id: int) -> None:
        waiting = self.waiting_producers.pop(producer_id, None)
        if waiting is not None:
            self.tell_ready(waiting)

    def producer_refused(self, producer_id: int, refusal: BrokerError) -> None:
        waiting = self.waiting_producers.pop(producer_id, None)
        if waiting is not None:
            self.producers.pop(producer_id, None)
            self.send_error("PRODUCER", waiting.producer.request_id, refusal, str(waiting.topic.name))

    def producer_fenced(self, producer_id: int) -> None:
        # Not a recently closed producer: messages in transit from it must end the connection.
        self.producers.pop(producer_id, None)

    def close_consumer(self, consumer_id: int) -> None:
        self.consumers.pop(consumer_id, None)
        self.send(replies.close_consumer(consumer_id))

    def active_consumer_changed(self, consumer_id: int, is_active: bool) -> None:
        if self.session.knows_active_consumer:
            self.send(replies.active_consumer_change(consumer_id, is_active))

    def reached_end_of_topic(self, consumer_id: int) -> None:
        if self.session.knows_end_of_topic(self.client_version):
            self.send(replies.reached_end_of_topic(consumer_id))

    async def is_alive(self) -> bool:
        if self.session.state is not SessionState.CONNECTED:
            self._detach_all()
            return False
        timeout_ms = self.context.liveness_timeout_ms
        if timeout_ms <= 0 or self._pauses.reasons & read_pauses.WAITS:
            return True  # a PONG would wait until reading resumes
        self.send(replies.PING)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._alive_waiters.wait()
        except TimeoutError:
            self.abort("no answer to the liveness check")
            return False
        return self.session.state is SessionState.CONNECTED

    # --- time --------------------------------------------------------------------------------------------------------

    def accept_messages(self) -> None:
        """Allow messages and large commands after authentication, up to the configured limits of frames, batches and fields."""
        self._decoder.accept_messages(
            self.context.max_message_bytes, self.context.max_batch_messages, self.context.max_fields
        )

    def keep_alive_tick(self) -> None:
        if not self.is_writable or self._pauses.reasons & read_pauses.WAITS:
            return  # Reading is paused, so silence proves nothing. `close_stalled` handles this connection.
        action = self.session.tick()
        if action is KeepAlive.PING:
            self.send(replies.PING)
        elif action is KeepAlive.CLOSE:
            self.abort("keep-alive: no data from the client within two keepAliveIntervalSeconds")


class _Waiters:
    __slots__ = ("events",)

    def __init__(self) -> None:
        self.events: list[asyncio.Event] = []

    async def wait(self) -> None:
        self.events.append(event := asyncio.Event())
        try:
            await event.wait()
        finally:
            if event in self.events:
                self.events.remove(event)

    def wake(self) -> None:
        events, self.events = self.events, []
        for event in events:
            event.set()
