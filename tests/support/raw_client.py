"""A small blocking client that can send anything: well-formed commands, malformed frames, commands at the wrong time.

`pybroker.client` cuts frames and packs entries. This module adds fields by name, wrong checksums, and silence.
Commands and messages are parsed with protobuf only, as a check of the client's own parser.

A reading thread answers the broker's PINGs, also in sessions that the test does not currently use, because a broker
pings the owner of a name to check whether it lives. Invariant: replies are returned in order of arrival; only
answered PINGs are omitted.
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

# A command's message is in the field whose number is the command's type.
_FIELDS = {field.number: field.name for field in pb.BaseCommand.DESCRIPTOR.fields}


class RawClient:
    """One connection. `closed` is true when the broker has ended it."""

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
        """Send bytes unchanged. A closed connection is not an error."""
        with self._sending, contextlib.suppress(OSError):
            self.socket.sendall(data)

    def send(self, command_type: "pb.BaseCommand.Type", **fields: Any) -> None:
        """Send a command without payload; `fields` belong to the command's message."""
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
        """Send a SEND. `checksum`: good, bad or none. `batch`: payloads of a batch instead of `payload`."""
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
        """Send CONNECT and return the reply."""
        self.send(Type.CONNECT, **{"client_version": "raw", "protocol_version": 21, **fields})
        return self.reply()

    def request(self, command_type: "pb.BaseCommand.Type", **fields: Any) -> dict[str, Any]:
        """Send a command with a new request id and return the next reply."""
        self._request_id += 1
        self.send(command_type, request_id=self._request_id, **fields)
        return self.reply()

    # --- whole exchanges

    def look_up(self, topic: str) -> None:
        """Send the lookups that a broker may require before PRODUCER and SUBSCRIBE; the replies are ignored."""
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
        """Publish `count` single messages m0, m1, ... and return their receipts."""
        for index in range(first, first + count):
            self.send_message(producer_id, index, b"m%d" % index)
        return [self.reply() for _ in range(count)]

    def publish_batches(self, producer_id: int, count: int, size: int) -> list[dict[str, Any]]:
        """Publish `count` batches of `size` messages and return their receipts."""
        for index in range(count):
            batch = [b"b%d-%d" % (index, each) for each in range(size)]
            self.send_message(producer_id, index * size, batch=batch)
        return [self.reply() for _ in range(count)]

    # --- in

    def reply(self, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
        """Return the next command; CLOSED at the end of the connection, NOTHING after the timeout."""
        if self.closed:
            return dict(CLOSED)
        try:
            found = self._replies.get(timeout=timeout_s)
        except queue.Empty:
            return dict(NOTHING)
        self.closed = found == CLOSED
        return found

    def replies(self, quiet_s: float = QUIET_S) -> list[dict[str, Any]]:
        """Return all commands until none arrives for `quiet_s` or the connection ends."""
        found: list[dict[str, Any]] = []
        while (one := self.reply(quiet_s)) != NOTHING:
            found.append(one)
            if one == CLOSED:
                break
        return found

    def stop_reading(self) -> None:
        """Stop reading from the socket after the current read, so that the broker's data accumulates."""
        self._may_read.clear()

    def read_again(self) -> None:
        self._may_read.set()

    def _read(self) -> None:
        """Read until the connection ends."""
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
    """Never answers a PING, like a client on a lost machine; PINGs are among its replies."""

    answers_pings = False


@contextlib.contextmanager
def opened(broker: BrokerProcess, kind: type[RawClient] = RawClient) -> Iterator[RawClient]:
    """Yield an opened connection without CONNECT, and close it at the end."""
    client = kind(broker.url)
    try:
        yield client
    finally:
        client.close()


@contextlib.contextmanager
def connected(broker: BrokerProcess, kind: type[RawClient] = RawClient) -> Iterator[RawClient]:
    """Yield a connection after CONNECTED, and close it at the end."""
    with opened(broker, kind) as client:
        assert client.connect()["type"] == "CONNECTED"
        yield client


def encode(command_type: "pb.BaseCommand.Type", **fields: Any) -> bytes:
    """Encode a BaseCommand, with its message if it has fields or requires one."""
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
    """Return a reader of frames of any size, each a command and the rest of its frame."""
    reader = FrameReader(command_and_rest)
    reader.max_frame_bytes = 1 << 31
    return reader


def to_dict(command: pb.BaseCommand, tail: bytes) -> dict[str, Any]:
    """Return type and fields of a command and its message: metadata, payload, whether the checksum is correct.

    `entry_metadata`: the broker's metadata before the message, if present.
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
