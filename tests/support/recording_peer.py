"""A client without a socket that records what topics and subscriptions send."""

from __future__ import annotations

from dataclasses import dataclass, field

from pybroker.broker.context.peer import Peer
from pybroker.dispatch.dispatcher import Delivery
from pybroker.errors import BrokerError
from pybroker.model.events import SendRun
from pybroker.model.position import Position


@dataclass(eq=False)
class RecordingPeer(Peer):
    """A client that accepts and records everything."""

    address: str = "/127.0.0.1:1"
    client_version: str = "test"
    role: str | None = None
    supports_partial_producer: bool = False
    receipts: list[Position] = field(default_factory=list)
    errors: list[BrokerError] = field(default_factory=list)
    dropped: int = 0
    delivered: list[Position] = field(default_factory=list)
    ack_responses: list[tuple[int, BrokerError | None]] = field(default_factory=list)
    closed_producers: list[int] = field(default_factory=list)
    ready_producers: list[int] = field(default_factory=list)
    refused_producers: list[BrokerError] = field(default_factory=list)
    fenced_producers: list[int] = field(default_factory=list)
    closed_consumers: list[int] = field(default_factory=list)
    at_end: list[int] = field(default_factory=list)
    activity: list[bool] = field(default_factory=list)

    def send_receipts(self, run: SendRun, ledger_id: int, first_entry_id: int) -> None:
        self.receipts += [Position(ledger_id, first_entry_id + index) for index in range(len(run.sequence_ids))]

    def send_receipts_not_stored(self, run: SendRun, id_part: int) -> None:
        self.receipts += [Position(id_part, id_part)] * len(run.sequence_ids)

    def send_errors(self, producer_id: int, sequence_ids: list[int], error: BrokerError, size_bytes: int) -> None:
        self.errors += [error] * len(sequence_ids)

    def sends_dropped(self, run: SendRun, reason: BrokerError) -> None:
        self.dropped += len(run.sequence_ids)

    def send_messages(self, consumer_id: int, delivery: Delivery, consumer_epoch: int, partition: int) -> None:
        self.delivered += [Position(delivery.ledger_id, entry_id) for entry_id in delivery.entry_ids]

    def send_ack_response(self, consumer_id: int, request_id: int, error: BrokerError | None) -> None:
        self.ack_responses.append((request_id, error))

    def close_producer(self, producer_id: int) -> None:
        self.closed_producers.append(producer_id)

    def producer_ready(self, producer_id: int) -> None:
        self.ready_producers.append(producer_id)

    def producer_refused(self, producer_id: int, refusal: BrokerError) -> None:
        self.refused_producers.append(refusal)

    def producer_fenced(self, producer_id: int) -> None:
        self.fenced_producers.append(producer_id)

    def close_consumer(self, consumer_id: int) -> None:
        self.closed_consumers.append(consumer_id)

    def active_consumer_changed(self, consumer_id: int, is_active: bool) -> None:
        self.activity.append(is_active)

    def reached_end_of_topic(self, consumer_id: int) -> None:
        self.at_end.append(consumer_id)

    async def is_alive(self) -> bool:
        return True
