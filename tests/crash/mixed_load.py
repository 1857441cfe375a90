"""Clients of many kinds on one topic each, and what the broker has promised them.

`Promises` is the plain record: what was sent, which of it was receipted where, which acknowledgements were receipted. What
must hold is checked as it happens and noted in `broken`: a position is given once, and what was receipted as acknowledged
does not come again. Order and completeness are for the caller to check at the end.

Each client is a thread that works until its connection ends.
"""

import threading
from abc import ABC, abstractmethod
from random import Random
from typing import Any

import pulsar
from tests.support.raw_client import CLOSED, RawClient

from pybroker.wire import pulsar_api_pb2 as pb

SUBSCRIPTION = "work"
BATCH_MESSAGES = 10
WINDOW = 40  # unanswered sends of a raw producer
PERMITS = 500
ACK_EVERY = 7
TIMEOUT_S = 30.0

Position = tuple[int, int]
Message = tuple[int, int, int]  # ledger, entry, index in the batch or -1


class Promises:
    """Of one topic, through all restarts. Each part is changed by one thread at a time."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.sent: dict[str, list[bytes]] = {}  # by producer, in order
        self.receipted: dict[bytes, Message] = {}
        self.acked: set[Message] = set()  # with a receipt
        self.acked_up_to: Position = (-1, -1)  # with a receipt
        self.maybe_acked: set[Message] = set()  # sent, whatever was answered
        self.maybe_acked_up_to: Position = (-1, -1)
        self.broken: list[str] = []
        self._bodies: dict[Message, bytes] = {}

    def progress(self) -> int:
        """Rises with every promise."""
        return len(self.receipted) + len(self.acked)

    def receipt(self, body: bytes, message: Message) -> None:
        if self._bodies.setdefault(message, body) != body or body in self.receipted:
            self.broken.append(f"{message} was given to {self._bodies[message]!r} and to {body!r}")
        self.receipted[body] = message

    def delivered(self, message: Message) -> None:
        if message in self.acked or message[:2] <= self.acked_up_to:
            self.broken.append(f"{message} came again after its acknowledgement was receipted")

    def is_owed(self, message: Message) -> bool:
        """Whether no acknowledgement of it was ever sent: it must come again."""
        return message not in self.maybe_acked and message[:2] > self.maybe_acked_up_to


class Worker(ABC):
    """A thread that ends by itself when the broker has gone."""

    def __init__(self, promises: Promises) -> None:
        self.promises = promises
        self._thread = threading.Thread(target=self._guarded, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join(TIMEOUT_S)
        if self._thread.is_alive():
            self.promises.broken.append(f"{type(self).__name__} does not end")

    def _guarded(self) -> None:
        try:
            self.work()
        except Exception as error:  # noqa: BLE001 - the test must hear of it
            self.promises.broken.append(f"{type(self).__name__}: {error!r}")

    @abstractmethod
    def work(self) -> None: ...


class OfficialProducer(Worker):
    """The official client's producer, batching or not, until `stop`."""

    def __init__(self, promises: Promises, client: pulsar.Client, name: str, *, batching: bool) -> None:
        super().__init__(promises)
        self._stopped = threading.Event()
        self._name = name
        self._producer = client.create_producer(
            promises.topic, batching_enabled=batching, batching_max_messages=BATCH_MESSAGES, max_pending_messages=200
        )

    def stop(self) -> None:
        self._stopped.set()

    def work(self) -> None:
        sent = self.promises.sent.setdefault(self._name, [])
        while not self._stopped.is_set():
            body = f"{self._name}-{len(sent)}".encode()
            try:
                self._producer.send_async(body, lambda result, where, body=body: self._answered(body, result, where))
            except pulsar.PulsarException:  # its queue is full: the broker is slower, or gone
                self._stopped.wait(0.002)
                continue
            sent.append(body)

    def _answered(self, body: bytes, result: pulsar.Result, where: pulsar.MessageId) -> None:
        if result == pulsar.Result.Ok:
            self.promises.receipt(body, (where.ledger_id(), where.entry_id(), where.batch_index()))


class RawProducer(Worker):
    """Single messages, or batches of BATCH_MESSAGES, with a window of unanswered sends."""

    def __init__(self, promises: Promises, url: str, name: str, *, batching: bool) -> None:
        super().__init__(promises)
        self._client = RawClient(url)
        self._client.connect()
        self._client.open_producer(promises.topic)
        self._name = name
        self._batching = batching

    def work(self) -> None:
        sent = self.promises.sent.setdefault(self._name, [])
        unanswered: list[list[bytes]] = []
        sequence_id = 0
        while True:
            while len(unanswered) < WINDOW:
                count = BATCH_MESSAGES if self._batching else 1
                bodies = [f"{self._name}-{len(sent) + index}".encode() for index in range(count)]
                sent.extend(bodies)
                unanswered.append(bodies)
                if self._batching:
                    self._client.send_message(1, sequence_id, batch=bodies)
                else:
                    self._client.send_message(1, sequence_id, bodies[0])
                sequence_id += count
            reply = self._client.reply(TIMEOUT_S)
            if reply == CLOSED:
                self._client.close()
                return
            assert reply["type"] == "SEND_RECEIPT", reply
            ledger_id, entry_id = position_of(reply)
            for index, body in enumerate(unanswered.pop(0)):
                self.promises.receipt(body, (ledger_id, entry_id, index if self._batching else -1))


class AckingConsumer(Worker):
    """A raw consumer that acknowledges with receipts, in one of the ways below; leaves some messages unacknowledged."""

    def __init__(self, promises: Promises, url: str, sub_type: str, random: Random) -> None:
        super().__init__(promises)
        self._client = RawClient(url)
        self._client.connect()
        reply = self._client.subscribe(promises.topic, sub_type=sub_type, subscription=SUBSCRIPTION)
        assert reply["type"] == "SUCCESS", reply
        self._random = random
        self._request_id = 1000
        self._unanswered: dict[int, list[Message]] = {}

    def work(self) -> None:
        self._client.send(pb.BaseCommand.FLOW, consumer_id=1, messagePermits=PERMITS)
        received: list[dict[str, Any]] = []
        used = 0
        while (reply := self._client.reply(TIMEOUT_S)) != CLOSED:
            if reply["type"] == "ACK_RESPONSE":
                assert "error" not in reply, reply
                self.receipted(self._unanswered.pop(int(reply["request_id"])))
                continue
            assert reply["type"] == "MESSAGE", reply
            for message in messages_of(reply):
                self.promises.delivered(message)
            received.append(reply)
            used += len(messages_of(reply))
            if used >= PERMITS // 2:
                self._client.send(pb.BaseCommand.FLOW, consumer_id=1, messagePermits=used)
                used = 0
            if len(received) >= ACK_EVERY:
                self.acknowledge(received)
                received = []
        self._client.close()

    def send_ack(self, messages: list[Message], ids: list[pb.MessageIdData], ack_type: Any) -> None:
        self._request_id += 1
        self._unanswered[self._request_id] = messages
        self._client.send(
            pb.BaseCommand.ACK, consumer_id=1, ack_type=ack_type, message_id=ids, request_id=self._request_id
        )

    @abstractmethod
    def acknowledge(self, received: list[dict[str, Any]]) -> None:
        """Some of what came."""

    def receipted(self, messages: list[Message]) -> None:
        self.promises.acked.update(messages)


class IndividualAcks(AckingConsumer):
    """Entries, one by one, with gaps."""

    def acknowledge(self, received: list[dict[str, Any]]) -> None:
        chosen = [reply for reply in received if self._random.random() < 0.9]
        messages = [message for reply in chosen for message in messages_of(reply)]
        self.promises.maybe_acked.update(messages)
        ids = [pb.MessageIdData(ledgerId=each[0], entryId=each[1]) for each in map(position_of, chosen)]
        self.send_ack(messages, ids, pb.CommandAck.Individual)


class CumulativeAcks(AckingConsumer):
    """Everything up to some message before the last."""

    def acknowledge(self, received: list[dict[str, Any]]) -> None:
        position = position_of(received[self._random.randrange(len(received))])
        self.promises.maybe_acked_up_to = max(self.promises.maybe_acked_up_to, position)
        ids = [pb.MessageIdData(ledgerId=position[0], entryId=position[1])]
        self.send_ack([(*position, -1)], ids, pb.CommandAck.Cumulative)

    def receipted(self, messages: list[Message]) -> None:
        self.promises.acked_up_to = max(self.promises.acked_up_to, messages[0][:2])
        self.promises.acked.update(messages)


class BatchIndexAcks(AckingConsumer):
    """Some messages of each batch; a later delivery brings the rest."""

    def acknowledge(self, received: list[dict[str, Any]]) -> None:
        messages, ids = [], []
        for reply in received:
            chosen = [message for message in messages_of(reply) if self._random.random() < 0.7]
            messages += chosen
            ledger_id, entry_id = position_of(reply)
            kept = (1 << BATCH_MESSAGES) - 1
            for _, _, index in chosen:
                kept &= ~(1 << index)
            one = pb.MessageIdData(ledgerId=ledger_id, entryId=entry_id, ack_set=[kept], batch_size=BATCH_MESSAGES)
            ids.append(one)
        self.promises.maybe_acked.update(messages)
        self.send_ack(messages, ids, pb.CommandAck.Individual)


def position_of(reply: dict[str, Any]) -> Position:
    """Of a MESSAGE or a SEND_RECEIPT."""
    return int(reply["message_id"]["ledgerId"]), int(reply["message_id"]["entryId"])


def messages_of(reply: dict[str, Any]) -> list[Message]:
    """The messages that a MESSAGE command brings: of a batch those that its ack set leaves."""
    ledger_id, entry_id = position_of(reply)
    count = reply["metadata"].get("num_messages_in_batch")
    if count is None:
        return [(ledger_id, entry_id, -1)]
    left = int(reply["ack_set"][0]) if "ack_set" in reply else -1
    return [(ledger_id, entry_id, index) for index in range(count) if left >> index & 1]
