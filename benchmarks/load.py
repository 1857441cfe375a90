"""Drivers of one connection each, for a producer or some consumers, all run by one small event loop.

Invariant: a driver does no work for each message except splitting its frame; every receipt is counted, and the last of
each read is checked against the expected sequence id.
"""

import select
import selectors
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from benchmarks import frames
from pybroker.wire import pulsar_api_pb2 as pb

SETUP_TIMEOUT_S = 30.0
CONSUMER_QUEUE_MESSAGES = 1000
ACK_GROUP_MESSAGES = 100  # clients also group acknowledgements, by count and time
_SETUP_BYTES = 4096
_CONNECT = pb.BaseCommand(
    type=pb.BaseCommand.CONNECT, connect=pb.CommandConnect(client_version="pybroker-load", protocol_version=21)
)


class LoadError(Exception):
    """The broker has violated the protocol."""


class Link:
    """A connected session: blocking during setup, non-blocking in the loop."""

    def __init__(self, service_url: str, *, connects: bool = True) -> None:
        """Connect. Without `connects`, the caller sends the first commands together with `send_producer`."""
        url = urlsplit(service_url)
        assert url.hostname is not None, service_url
        self.socket = socket.create_connection((url.hostname, url.port or 6650), timeout=SETUP_TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.walker = frames.FrameWalker() if connects else frames.FrameWalker(_SETUP_BYTES)
        self._next_request_id = 0
        if connects:
            self._send(_CONNECT)
            self._receive(pb.BaseCommand.CONNECTED)

    def look_up(self, topic: str) -> None:
        """Look up partitions and owner of a topic, as clients do."""
        request_id = self.next_request_id()
        metadata = pb.CommandPartitionedTopicMetadata(topic=topic, request_id=request_id)
        self._send(pb.BaseCommand(type=pb.BaseCommand.PARTITIONED_METADATA, partitionMetadata=metadata))
        self._receive(pb.BaseCommand.PARTITIONED_METADATA_RESPONSE)
        lookup = pb.CommandLookupTopic(topic=topic, request_id=self.next_request_id())
        self._send(pb.BaseCommand(type=pb.BaseCommand.LOOKUP, lookupTopic=lookup))
        reply = self._receive(pb.BaseCommand.LOOKUP_RESPONSE).lookupTopicResponse
        if reply.response != pb.CommandLookupTopicResponse.Connect:
            raise LoadError(f"lookup of {topic}: {reply}")

    def open_producer(self, topic: str, producer_id: int) -> str:
        self.look_up(topic)
        self._send(self._producer(topic, producer_id))
        return self._receive(pb.BaseCommand.PRODUCER_SUCCESS).producer_success.producer_name

    def _producer(self, topic: str, producer_id: int) -> pb.BaseCommand:
        producer = pb.CommandProducer(topic=topic, producer_id=producer_id, request_id=self.next_request_id())
        return pb.BaseCommand(type=pb.BaseCommand.PRODUCER, producer=producer)

    def send_producer(self, topic: str, producer_id: int) -> None:
        """Send CONNECT and PRODUCER at once. `await_producer` receives the answers."""
        self.socket.sendall(frames.encode_command(_CONNECT) + frames.encode_command(self._producer(topic, producer_id)))

    def await_producer(self) -> None:
        missing = {pb.BaseCommand.CONNECTED, pb.BaseCommand.PRODUCER_SUCCESS}
        for command in self.exchange(b"", len(missing)):
            missing.discard(command.type)
        if missing:
            raise LoadError("the broker refused a connection or its producer")

    def subscribe(
        self,
        topic: str,
        subscription: str,
        sub_type: "pb.CommandSubscribe.SubType",
        consumer_id: int,
        consumer_name: str = "",
        is_durable: bool = True,
    ) -> None:
        self.look_up(topic)
        subscribe = pb.CommandSubscribe(
            topic=topic,
            subscription=subscription,
            subType=sub_type,
            consumer_id=consumer_id,
            consumer_name=consumer_name,
            durable=is_durable,
            request_id=self.next_request_id(),
            initialPosition=pb.CommandSubscribe.Earliest,
        )
        self._send(pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE, subscribe=subscribe))
        self._receive(pb.BaseCommand.SUCCESS)

    def acknowledge(self, consumer_id: int, message_ids: list[pb.MessageIdData]) -> None:
        ack = pb.CommandAck(
            consumer_id=consumer_id,
            ack_type=pb.CommandAck.Individual,
            message_id=message_ids,
            request_id=self.next_request_id(),
        )
        self._send(pb.BaseCommand(type=pb.BaseCommand.ACK, ack=ack))
        response = self._receive(pb.BaseCommand.ACK_RESPONSE).ackResponse
        if response.HasField("error"):
            raise LoadError(f"an acknowledgement failed: {response}")

    def ping(self) -> None:
        self._send(pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing()))
        self._receive(pb.BaseCommand.PONG)

    def exchange(self, data: bytes, answers: int) -> list[pb.BaseCommand]:
        """Send bytes and return the given number of responses, or fewer if the broker closes the connection."""
        found: list[pb.BaseCommand] = []
        try:
            self.socket.sendall(data)
            while len(found) < answers and (received := self.socket.recv_into(self.walker.space())):
                cut = self.walker.frames(received)
                commands = [self.walker.decode(start) for _, start, _ in cut]
                if cut:
                    self.walker.consumed(cut[-1][2])
                found += [command for command in commands if command.type != pb.BaseCommand.PING]
                if len(found) < answers and any(command.type == pb.BaseCommand.PING for command in commands):
                    self.socket.sendall(frames.PONG)
        except ConnectionError:
            return found  # refused while being sent
        return found

    def close(self) -> None:
        self.socket.close()

    def next_request_id(self) -> int:
        self._next_request_id += 1
        return self._next_request_id

    def _send(self, command: pb.BaseCommand) -> None:
        self.socket.sendall(frames.encode_command(command))

    def _receive(self, expected: "pb.BaseCommand.Type") -> pb.BaseCommand:
        while True:
            received = self.socket.recv_into(self.walker.space())
            if not received:
                raise LoadError(
                    f"the broker closed the connection instead of sending {pb.BaseCommand.Type.Name(expected)}"
                )
            commands = [(self.walker.decode(start), end) for _, start, end in self.walker.frames(received)]
            if commands:
                self.walker.consumed(commands[-1][1])
            for command, _ in commands:
                if command.type == pb.BaseCommand.PING:
                    self.socket.sendall(frames.PONG)
                elif command.type == expected:
                    return command
                else:
                    raise LoadError(f"not a {pb.BaseCommand.Type.Name(expected)}: {command}")


class Driver(ABC):
    """A connection in the loop: reads until the socket is empty, then writes pending data."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._out = bytearray()
        link.socket.setblocking(False)

    def read(self) -> None:
        walker = self.link.walker
        try:
            received = self.link.socket.recv_into(walker.space())
        except BlockingIOError:
            return
        if not received:
            raise LoadError("the broker closed the connection")
        found = walker.frames(received)
        if found:
            self.take(found)
            walker.consumed(found[-1][2])

    def wait_and_read(self, timeout_s: float) -> None:
        """Read without the loop: block up to `timeout_s`."""
        if select.select([self.link.socket], [], [], timeout_s)[0]:
            self.read()

    @abstractmethod
    def take(self, found: list[tuple[int, int, int]]) -> None: ...

    @abstractmethod
    def write(self) -> bool:
        """Send pending data. Return False if the socket is full."""

    def take_other(self, command_type: int, start: int) -> None:
        """Answer a PING. Any other command is an error."""
        if command_type != frames.PING:
            raise LoadError(f"unexpected: {self.link.walker.decode(start)}")
        self._out += frames.PONG

    def _flush(self) -> bool:
        while self._out:
            try:
                sent = self.link.socket.send(self._out)
            except BlockingIOError:
                return False
            del self._out[:sent]
        return True


class Publisher(Driver):
    """Keeps up to `window` entries without receipts, each of `messages_per_entry` messages.

    Invariant: 0 <= sent_entries - receipted_entries <= window; receipts arrive in order and completely.
    """

    def __init__(self, link: Link, block: frames.SendBlock, window: int) -> None:
        super().__init__(link)
        self.block = block
        self.window = window
        self.receipted_entries = 0
        self.last_receipt = pb.CommandSendReceipt()
        self.stopped = False
        self._limit: int | None = None
        self._blocks_done = 0
        self._position = 0  # bytes of the block that are sent
        # Small writes cost client and broker a system call each; a client's queue combines them, too.
        self._least_burst = max(1, min(block.frame_count, window) // 4)

    @property
    def sent_entries(self) -> int:
        return self._blocks_done * self.block.frame_count + -(-self._position // self.block.frame_bytes)

    def limit_to(self, entries: int) -> None:
        self._limit = entries

    def finished(self) -> bool:
        due = self._limit if self._limit is not None else self.sent_entries
        return self.receipted_entries >= due and (self.stopped or self._limit is not None)

    def take(self, found: list[tuple[int, int, int]]) -> None:
        last_start = 0
        for command_type, start, _ in found:
            if command_type == frames.SEND_RECEIPT:
                self.receipted_entries += 1
                last_start = start
            else:
                self.take_other(command_type, start)
        if last_start:
            self.last_receipt = self.link.walker.decode(last_start).send_receipt
            self._check_receipt(self.last_receipt)

    def _check_receipt(self, receipt: pb.CommandSendReceipt) -> None:
        block = self.block
        entry = self.receipted_entries - 1 - self._blocks_done * block.frame_count  # relative to the current block
        due = block.first_sequence_id + entry * block.messages_per_entry
        wrapped = due < frames.FIRST_SEQUENCE_ID
        if receipt.sequence_id != due and not wrapped:
            raise LoadError(f"receipt {receipt.sequence_id} where {due} is due")

    def write(self) -> bool:
        if not self._flush():
            return False
        block = self.block
        while not self.stopped:
            sent_entries = self.sent_entries
            room = self.window - (sent_entries - self.receipted_entries)
            allowed = min(room, self._limit - sent_entries) if self._limit is not None else room
            partial = self._position % block.frame_bytes
            if not partial and (allowed <= 0 or room < self._least_burst):
                return True
            end = min(self._position // block.frame_bytes + bool(partial) + max(allowed, 0), block.frame_count)
            try:
                self._position += self.link.socket.send(block.view[self._position : end * block.frame_bytes])
            except BlockingIOError:
                return False
            if self._position == len(block.buffer):
                self._blocks_done += 1
                self._position = 0
                block.advance()
        return self._finish_frame()

    def _finish_frame(self) -> bool:
        """Complete the current frame, also after a stop."""
        size = self.block.frame_bytes
        while partial := self._position % size:
            try:
                self._position += self.link.socket.send(
                    self.block.view[self._position : self._position + size - partial]
                )
            except BlockingIOError:
                return False
        return True


class Subscriber(Driver):
    """The consumers of one connection: send permits like a client's receiver queue, and acknowledge in groups.

    A permit is valid for one message, so an entry uses `messages_per_entry` permits.
    """

    def __init__(self, link: Link, consumer_ids: Iterable[int], messages_per_entry: int = 1) -> None:
        super().__init__(link)
        self.received = 0  # messages
        self._messages_per_entry = messages_per_entry
        self._used_permits = dict.fromkeys(consumer_ids, 0)
        self._acks: dict[int, list[bytes]] = {consumer_id: [] for consumer_id in self._used_permits}
        for consumer_id in self._used_permits:
            self._out += frames.encode_flow(consumer_id, CONSUMER_QUEUE_MESSAGES)

    def take(self, found: list[tuple[int, int, int]]) -> None:
        buffer, acks, used = self.link.walker.buffer, self._acks, self._used_permits
        messages_per_entry = self._messages_per_entry
        for command_type, start, _ in found:
            if command_type != frames.MESSAGE:
                self.take_other(command_type, start)
                continue
            consumer_id, field = frames.message_id_field(buffer, start)
            acks[consumer_id].append(field)
            used[consumer_id] += messages_per_entry
            self.received += messages_per_entry
            if used[consumer_id] >= CONSUMER_QUEUE_MESSAGES // 2:
                self._out += frames.encode_flow(consumer_id, used[consumer_id])
                used[consumer_id] = 0
            if len(acks[consumer_id]) >= ACK_GROUP_MESSAGES:
                self._taken(consumer_id)

    def write(self) -> bool:
        return self._flush()

    def acknowledge_rest(self) -> None:
        """Acknowledge messages of incomplete groups, after all have arrived."""
        for consumer_id in self._acks:
            self._taken(consumer_id)
        self.link.socket.setblocking(True)
        self._flush()

    def _taken(self, consumer_id: int) -> None:
        if self._acks[consumer_id]:
            self._out += frames.encode_ack(consumer_id, self._acks[consumer_id])
            self._acks[consumer_id].clear()


class Witness(Subscriber):
    """One consumer that acknowledges nothing and records entry positions in order of arrival."""

    def __init__(self, link: Link, messages_per_entry: int = 1) -> None:
        super().__init__(link, [1], messages_per_entry)
        self.positions: list[tuple[int, int]] = []

    def note_rest(self) -> None:
        self._taken(1)

    def _taken(self, consumer_id: int) -> None:
        for field in self._acks[consumer_id]:
            message_id = pb.MessageIdData.FromString(field[2:])
            self.positions.append((message_id.ledgerId, message_id.entryId))
        self._acks[consumer_id].clear()


def run(drivers: list[Driver], until: Callable[[], bool], timeout_s: float) -> None:
    """Run the loop until `until()` is true."""
    deadline_s = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        interest = {}
        for driver in drivers:
            interest[driver] = selectors.EVENT_READ
            selector.register(driver.link.socket, selectors.EVENT_READ, driver)
        ready = list(drivers)
        while not until():
            for driver in ready:
                wanted = selectors.EVENT_READ if driver.write() else selectors.EVENT_READ | selectors.EVENT_WRITE
                if wanted != interest[driver]:
                    interest[driver] = wanted
                    selector.modify(driver.link.socket, wanted, driver)
            ready = []
            for key, events in selector.select(0.05):
                if events & selectors.EVENT_READ:
                    key.data.read()
                ready.append(key.data)
            if time.monotonic() > deadline_s:
                raise LoadError(f"the load did not complete within {timeout_s} s")
