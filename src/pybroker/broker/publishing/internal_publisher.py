"""Base class of connections by which the broker itself publishes, without a client."""

from __future__ import annotations

from abc import abstractmethod

from pybroker.broker.context.peer import Peer
from pybroker.dispatch.dispatcher import Delivery
from pybroker.errors import BrokerError
from pybroker.model.events import SendRun
from pybroker.model.position import Position


class Publisher(Peer):
    """A connection that only publishes."""

    address = ""
    client_version = ""
    role = None

    @abstractmethod
    def _answer(self, sequence_id: int, answer: Position | BrokerError) -> None:
        """Handle the result for a message: its durable position, or the error."""

    def send_receipts(self, run: SendRun, ledger_id: int, first_entry_id: int) -> None:
        for offset, sequence_id in enumerate(run.sequence_ids):
            self._answer(sequence_id, Position(ledger_id, first_entry_id + offset))

    def send_receipts_not_stored(self, run: SendRun, id_part: int) -> None:
        for sequence_id in run.sequence_ids:
            self._answer(sequence_id, Position(id_part, id_part))

    def send_errors(self, producer_id: int, sequence_ids: list[int], error: BrokerError, size_bytes: int) -> None:
        for sequence_id in sequence_ids:
            self._answer(sequence_id, error)

    def sends_dropped(self, run: SendRun, reason: BrokerError) -> None:
        for sequence_id in run.sequence_ids:
            self._answer(sequence_id, reason)

    def send_messages(self, consumer_id: int, delivery: Delivery, consumer_epoch: int, partition: int) -> None:
        raise AssertionError("a producer consumes nothing")

    def send_ack_response(self, consumer_id: int, request_id: int, error: BrokerError | None) -> None:
        raise AssertionError("a producer acknowledges nothing")

    def close_producer(self, producer_id: int) -> None: ...

    def producer_ready(self, producer_id: int) -> None:
        raise AssertionError("this is a bug: the own producers of the broker never wait for exclusive access")

    def producer_refused(self, producer_id: int, refusal: BrokerError) -> None:
        raise AssertionError("this is a bug: the own producers of the broker never wait for exclusive access")

    def producer_fenced(self, producer_id: int) -> None: ...

    def close_consumer(self, consumer_id: int) -> None: ...

    def active_consumer_changed(self, consumer_id: int, is_active: bool) -> None: ...

    def reached_end_of_topic(self, consumer_id: int) -> None: ...

    async def is_alive(self) -> bool:
        return True
