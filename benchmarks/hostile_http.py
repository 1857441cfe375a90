"""The worst inputs of HTTP routes, for `hostile.py`: requests that any client may send, and fragmented heads and
bodies.

Routes that read the same kind of document cost the same, so one route represents all of them.
"""

import contextlib
import http.client
import json
import urllib.parse
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from benchmarks import cases, frames, load
from benchmarks.brokers import Broker
from benchmarks.hostile import Attack, Fire
from pybroker.wire import pulsar_api_pb2 as pb

_SCHEMA_FIELDS = '{"name": "f%d", "type": "int"}'
_HEAD_BYTES = 100  # approximate size of the rest of a small request


def _connected(broker: Broker) -> http.client.HTTPConnection:
    assert broker.http_url is not None
    url = urllib.parse.urlsplit(broker.http_url)
    return http.client.HTTPConnection(url.hostname or "", url.port, timeout=120)


def _ask(
    connection: http.client.HTTPConnection, method: str, path: str, body: bytes, headers: dict[str, str] | None = None
) -> int:
    """Send a request and read any response. Return the request's size in bytes."""
    connection.request(method, path, body, {"Content-Type": "application/json", **(headers or {})})
    with connection.getresponse() as answer:
        answer.read()
    return len(path) + len(body) + sum(map(len, (headers or {}).values()))


Ready = Callable[[Broker, int], AbstractContextManager[Fire]]


def _document(method: str, path: str, make: Callable[[int], object], *, on_topic: bool = False) -> Ready:
    @contextmanager
    def ready(broker: Broker, size_bytes: int) -> Iterator[Fire]:
        made = make(size_bytes)
        body = made if isinstance(made, bytes) else json.dumps(made, separators=(",", ":")).encode()
        with contextlib.closing(_connected(broker)) as connection:
            topic = cases.new_topic().partition("://")[2]
            if on_topic:
                _ask(connection, "PUT", f"/admin/v2/persistent/{topic}", b"")
            yield lambda: _ask(connection, method, path.replace("{topic}", topic), body)

    return ready


def _many(method: str, path: str, headers: dict[str, str] | None = None) -> Ready:
    """Return an attack by small requests, one after the other, with a given total size."""

    @contextmanager
    def ready(broker: Broker, size_bytes: int) -> Iterator[Fire]:
        with contextlib.closing(_connected(broker)) as connection:

            def fire() -> int:
                sent_bytes = 0
                while sent_bytes < size_bytes:
                    sent_bytes += _HEAD_BYTES + _ask(connection, method, path, b"", headers)
                return sent_bytes

            yield fire

    return ready


@contextmanager
def _header_lines(broker: Broker, size_bytes: int) -> Iterator[Fire]:
    """Attack with a request head of many short lines."""
    headers = {f"h{index}": "" for index in range(size_bytes // 8)}
    with contextlib.closing(_connected(broker)) as connection:

        def fire() -> int:
            _ask(connection, "GET", "/admin/v2/clusters", b"", headers)
            return size_bytes

        yield fire


@contextmanager
def _small_chunks(broker: Broker, size_bytes: int) -> Iterator[Fire]:
    """Attack with a body in the smallest accepted chunks."""
    body = (b"40\r\n" + b" " * 64 + b"\r\n") * (size_bytes // 70) + b"0\r\n\r\n"
    head = b"PUT /admin/v2/tenants/x HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    connection = _connected(broker)
    with contextlib.closing(connection):
        connection.connect()

        def fire() -> int:
            connection.sock.sendall(head + body)
            with http.client.HTTPResponse(connection.sock) as answer:
                answer.begin()
                answer.read()
            return len(body)

        yield fire


@contextmanager
def _examine(broker: Broker, size_bytes: int) -> Iterator[Fire]:
    """Attack by a view of a highly compressed message. The size is that of the response."""
    topic = cases.new_topic()
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    metadata.compression, metadata.uncompressed_size = pb.ZLIB, size_bytes
    tail = frames.encode_tail(metadata, zlib.compress(bytes(size_bytes)))
    link = load.Link(broker.service_url)
    try:
        link.open_producer(topic, producer_id=1)
        send = pb.BaseCommand(type=pb.BaseCommand.SEND, send=pb.CommandSend(producer_id=1, sequence_id=1))
        head = send.SerializeToString()
        sizes = (4 + len(head) + len(tail)).to_bytes(4, "big") + len(head).to_bytes(4, "big")
        link.exchange(sizes + head + tail, 1)
    finally:
        link.close()
    path = f"/admin/v2/{topic.replace('://', '/')}/examinemessage?initialPosition=earliest"
    with contextlib.closing(_connected(broker)) as connection:

        def fire() -> int:
            _ask(connection, "GET", path, b"")
            return size_bytes

        yield fire


def _objects(size_bytes: int) -> bytes:
    return b'{"x":[' + b",".join([b'{"a":{},"b":1}'] * (size_bytes // 15)) + b"]}"


def _properties(size_bytes: int) -> dict[str, str]:
    return {f"{index:06d}": "" for index in range(size_bytes // 12)}


def _roles(size_bytes: int) -> list[str]:
    return [f"{index:05d}" for index in range(size_bytes // 8)]


def _messages(size_bytes: int) -> dict[str, object]:
    return {"messages": [{"payload": "x" * (size_bytes // 10_000)}] * 9_000}


def _avro(size_bytes: int) -> dict[str, object]:
    fields = ",".join(_SCHEMA_FIELDS % index for index in range(size_bytes // 40))
    return {"type": "AVRO", "schema": f'{{"type": "record", "name": "r", "fields": [{fields}]}}', "properties": {}}


N = "/admin/v2/namespaces/public/default"
T = "/admin/v2/persistent/{topic}"
ATTACKS = {
    "hostile_http_head": Attack(1_000, 7_000, _header_lines),
    "hostile_http_head_too_large": Attack(10_000, 400_000, _header_lines),
    "hostile_http_small_chunks": Attack(50_000, 200_000, _small_chunks),
    "hostile_http_requests": Attack(5_000, 50_000, _many("GET", "/admin/v2/clusters")),
    "hostile_http_path": Attack(5_000, 50_000, _many("GET", "/admin/v2/persistent/public/default/" + "%41" * 2000)),
    "hostile_http_query": Attack(
        5_000, 50_000, _many("GET", f"{N.replace('namespaces', 'persistent')}?" + "a&" * 3000)
    ),
    "hostile_http_metrics": Attack(5_000, 50_000, _many("GET", "/metrics")),
    "hostile_http_document": Attack(50_000, 250_000, _document("POST", "/admin/v2/tenants/public", _objects)),
    "hostile_http_properties": Attack(50_000, 250_000, _document("PUT", f"{T}/properties", _properties, on_topic=True)),
    "hostile_http_namespace_properties": Attack(50_000, 250_000, _document("PUT", f"{N}/properties", _properties)),
    "hostile_http_tenant_roles": Attack(
        50_000,
        250_000,
        _document(
            "POST",
            "/admin/v2/tenants/public",
            lambda size: {"adminRoles": _roles(size), "allowedClusters": ["standalone"]},
        ),
    ),
    "hostile_http_permissions": Attack(
        50_000, 250_000, _document("POST", f"{N}/permissions/r", lambda size: ["produce", "consume"] * (size // 20))
    ),
    "hostile_http_subscription_roles": Attack(
        50_000, 250_000, _document("POST", f"{N}/permissions/subscription/s", _roles)
    ),
    "hostile_http_grants": Attack(
        50_000,
        250_000,
        _document(
            "POST",
            "/admin/v2/namespaces/grantPermissionsOnTopics",
            lambda size: [
                {"topic": f"persistent://public/default/{index}", "role": "r", "actions": ["produce"]}
                for index in range(size // 80)
            ],
        ),
    ),
    "hostile_http_split": Attack(
        50_000, 250_000, _document("PUT", f"{N}/0x00000000_0xffffffff/split", lambda size: list(range(size // 7)))
    ),
    "hostile_http_subscription_properties": Attack(
        50_000, 250_000, _document("PUT", f"{T}/subscription/s/properties", _properties, on_topic=True)
    ),
    "hostile_http_messages": Attack(
        50_000, 5_000_000, _document("POST", "/topics/persistent/{topic}", _messages, on_topic=True)
    ),
    "hostile_http_schema": Attack(
        50_000, 5_000_000, _document("POST", "/admin/v2/schemas/{topic}/schema", _avro, on_topic=True)
    ),
    "hostile_http_examine": Attack(100_000, 5_000_000, _examine),
}
