"""A small blocking client that can say anything: well-formed commands, malformed frames, commands at the wrong time.

Frames are cut, and entries packed, by `pybroker.client`. What stays here is what that never does: fields as a test names them,
wrong checksums, silence. Commands and messages are read with protobuf alone and shown whole, as a second opinion beside the
client's own reading of MESSAGE by hand.

A thread reads, so that a session the scenario is not looking at still answers the broker's PING: a broker pings the
owner of a taken name to see whether it lives. Invariant: replies are handed out in the order in which they came; only
PINGs that were answered are left out.
"""

import contextlib
import queue
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import crc32c
from google.protobuf.json_format import MessageToDict
from tests.support.broker_process import BrokerProcess

from pybroker.client.frames import FrameReader, command_and_rest
from pybroker.client.producing.packing import batch_payload
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.entry_builder import framed
from pybroker.wire.entry_metadata import message_start, metadata_span

Type = pb.BaseCommand
TIMEOUT_S = 10.0
QUIET_S = 0.7
CLOSED = {"type": "<closed>"}
NOTHING = {"type": "<nothing>"}

# A command's own message stands in the field whose number is the command's type.
_FIELDS = {field.number: field.name for field in pb.BaseCommand.DESCRIPTOR.fields}


class RawClient:
    """One connection. `closed` is true once the broker has ended it."""

    answers_pings = True

    def __init__(self, service_url: str) -> None:
        url = urlsplit(service_url)
        self.socket = socket.create_connection((url.hostname or "127.0.0.1", url.port or 6650))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.closed = False
        self._may_read = threading.Event()
        self._may_read.set()
        self._replies: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._sending = threading.Lock()
        self._request_id = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def close(self) -> None:
        self._may_read.set()
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self.socket.close()

    # --- out

    def send_bytes(self, data: bytes) -> None:
        """As they are; a connection that the broker has closed already is no error here."""
        with self._sending, contextlib.suppress(OSError):
            self.socket.sendall(data)

    def send(self, command_type: "pb.BaseCommand.Type", **fields: Any) -> None:
        """A command without payload; `fields` are those of the command's own message."""
        self.send_bytes(frame(encode(command_type, **fields)))

    def send_message(
        self,
        producer_id: int,
        sequence_id: int,
        payload: bytes = b"payload",
        *,
        checksum: str = "good",
        batch: list[bytes] | None = None,
        metadata: dict[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        """A SEND; `checksum` is good, bad or none; `batch` gives the payloads of a batch instead of `payload`."""
        meta = {"producer_name": "raw", "sequence_id": sequence_id, "publish_time": int(time.time() * 1000)}
        if batch is not None:
            meta["num_messages_in_batch"] = len(batch)
            fields["num_messages"] = len(batch)
            payload = batch_payload((pb.SingleMessageMetadata(), each) for each in batch)
        entry = bytearray(
            framed(pb.MessageMetadata(**{**meta, **(metadata or {})}), payload, has_checksum=checksum != "none")
        )
        if checksum == "bad":
            entry[5] ^= 1
        command = encode(Type.SEND, producer_id=producer_id, sequence_id=sequence_id, **fields)
        self.send_bytes(frame(command, bytes(entry)))

    def connect(self, **fields: Any) -> dict[str, Any]:
        """CONNECT and the reply to it."""
        self.send(Type.CONNECT, **{"client_version": "raw", "protocol_version": 21, **fields})
        return self.reply()

    def request(self, command_type: "pb.BaseCommand.Type", **fields: Any) -> dict[str, Any]:
        """A command with a request id of its own, and the next reply."""
        self._request_id += 1
        self.send(command_type, request_id=self._request_id, **fields)
        return self.reply()

    # --- whole exchanges

    def look_up(self, topic: str) -> None:
        """What a broker wants to see before PRODUCER and SUBSCRIBE; the answers are not looked at."""
        self.request(Type.PARTITIONED_METADATA, topic=topic)
        self.request(Type.LOOKUP, topic=topic)

    def open_producer(self, topic: str, producer_id: int = 1, **fields: Any) -> dict[str, Any]:
        self.look_up(topic)
        return self.request(Type.PRODUCER, topic=topic, producer_id=producer_id, **fields)

    def subscribe(self, topic: str, consumer_id: int = 1, sub_type: str = "Exclusive", **fields: Any) -> dict[str, Any]:
        self.look_up(topic)
        fields = {"subscription": "sub", "initialPosition": pb.CommandSubscribe.Earliest, **fields}
        kind = pb.CommandSubscribe.SubType.Value(sub_type)
        return self.request(Type.SUBSCRIBE, topic=topic, subType=kind, consumer_id=consumer_id, **fields)

    def publish(self, producer_id: int, count: int, first: int = 0) -> list[dict[str, Any]]:
        """`count` single messages m0, m1, ... and their receipts."""
        for index in range(first, first + count):
            self.send_message(producer_id, index, b"m%d" % index)
        return [self.reply() for _ in range(count)]

    def publish_batches(self, producer_id: int, count: int, size: int) -> list[dict[str, Any]]:
        """`count` batches of `size` messages and their receipts."""
        for index in range(count):
            batch = [b"b%d-%d" % (index, each) for each in range(size)]
            self.send_message(producer_id, index * size, batch=batch)
        return [self.reply() for _ in range(count)]

    # --- in

    def reply(self, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
        """The next command, as a dict; CLOSED at the end and after it, NOTHING when the timeout has passed."""
        if self.closed:
            return dict(CLOSED)
        try:
            found = self._replies.get(timeout=timeout_s)
        except queue.Empty:
            return dict(NOTHING)
        self.closed = found == CLOSED
        return found

    def replies(self, quiet_s: float = QUIET_S) -> list[dict[str, Any]]:
        """Everything that comes until it has been quiet for a while; a closed connection ends the list."""
        found: list[dict[str, Any]] = []
        while (one := self.reply(quiet_s)) != NOTHING:
            found.append(one)
            if one == CLOSED:
                break
        return found

    def stop_reading(self) -> None:
        """Take nothing more from the socket than the read that is under way; what the broker sends piles up there."""
        self._may_read.clear()

    def read_again(self) -> None:
        self._may_read.set()

    def _read(self) -> None:
        """The reading thread, until the connection ends from either side."""
        frames = all_frames()
        with contextlib.suppress(OSError):
            while data := self.socket.recv(1 << 18):
                self._may_read.wait()
                for command, rest in frames.feed(data):
                    if command.type == Type.PING and self.answers_pings:
                        self.send(Type.PONG)
                    else:
                        self._replies.put(to_dict(command, rest))
        self._replies.put(dict(CLOSED))


class DeadClient(RawClient):
    """Never answers a PING, like a client whose machine is gone; the PINGs are among its replies."""

    answers_pings = False


@contextlib.contextmanager
def opened(broker: BrokerProcess, kind: type[RawClient] = RawClient) -> Iterator[RawClient]:
    """A connection that has said nothing so far, closed at the end."""
    client = kind(broker.url)
    try:
        yield client
    finally:
        client.close()


@contextlib.contextmanager
def connected(broker: BrokerProcess, kind: type[RawClient] = RawClient) -> Iterator[RawClient]:
    """A connection that the broker has greeted, closed at the end."""
    with opened(broker, kind) as client:
        assert client.connect()["type"] == "CONNECTED"
        yield client


def encode(command_type: "pb.BaseCommand.Type", **fields: Any) -> bytes:
    """A BaseCommand of that type; without its message when there are no fields to it and it needs some."""
    command = pb.BaseCommand(type=command_type)
    message = getattr(command, _FIELDS[command_type])
    message.SetInParent()
    for name, value in fields.items():
        if isinstance(value, list):
            getattr(message, name).extend(value)
        elif hasattr(value, "DESCRIPTOR"):
            getattr(message, name).CopyFrom(value)
        else:
            setattr(message, name, value)
    return command.SerializeToString()


def frame(command: bytes, tail: bytes = b"") -> bytes:
    return struct.pack(">II", 4 + len(command) + len(tail), len(command)) + command + tail


def all_frames() -> FrameReader[tuple[pb.BaseCommand, bytes]]:
    """Cuts frames of any size, each a command and what follows it."""
    reader = FrameReader(command_and_rest)
    reader.max_frame_bytes = 1 << 31
    return reader


def to_dict(command: pb.BaseCommand, tail: bytes) -> dict[str, Any]:
    """Type and fields of a command, and of the message behind it: metadata, payload, whether its checksum holds.

    What the broker has put in front of the message, if it shows that, is `entry_metadata`.
    """
    fields: dict[str, Any] = MessageToDict(command, preserving_proto_field_name=True)
    name = fields.pop("type")
    own = fields.pop(_FIELDS[command.type], {})
    found = {"type": name, **own, **fields}
    if tail:
        found |= _tail_to_dict(tail)
    return found


def _tail_to_dict(tail: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {}
    start = message_start(tail)
    if start:
        added = pb.BrokerEntryMetadata.FromString(tail[6:start])
        found["entry_metadata"] = MessageToDict(added, preserving_proto_field_name=True)
    metadata_at, payload_at = metadata_span(tail)
    checksum = "none"
    if metadata_at - 4 > start:
        is_good = crc32c.crc32c(tail[start + 6 :]) == int.from_bytes(tail[start + 2 : start + 6], "big")
        checksum = "good" if is_good else "bad"
    metadata = MessageToDict(
        pb.MessageMetadata.FromString(tail[metadata_at:payload_at]), preserving_proto_field_name=True
    )
    payload = tail[payload_at:]
    shown = payload.decode() if payload.isascii() and len(payload) < 200 else f"{len(payload)} bytes"
    if "num_messages_in_batch" in metadata:
        shown = f"{len(payload)} bytes"
    return {**found, "checksum": checksum, "metadata": metadata, "payload": shown}
