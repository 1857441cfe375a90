"""Requests to an address that has never answered fail soon; requests to a known broker are retried."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from pybroker.client.access import Access
from pybroker.client.rest import RestClient, Unreachable

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


@contextlib.contextmanager
def listening(*answers: bytes) -> Iterator[str]:
    """Serve one of `answers` on each connection, then stop listening."""
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]

    def serve() -> None:
        with server:
            for answer in answers:
                connection, _ = server.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"http://127.0.0.1:{port}"
    thread.join()


def client(url: str, *, contact_patience_s: float | None, patience_s: float = 60) -> RestClient:
    access = Access("pulsar://127.0.0.1:1", url)
    return RestClient(access, patience_s, contact_patience_s)


def test_address_that_never_answered_is_an_error_after_the_shorter_patience() -> None:
    with listening() as url, contextlib.closing(client(url, contact_patience_s=0)) as rest:
        pass
    with pytest.raises(
        Unreachable, match=r"no broker answers at http://127.0.0.1:\d+ .*Check host and port of admin.url"
    ):
        rest.json("GET", "/x")


def test_port_of_another_protocol_is_named_as_a_wrong_address() -> None:
    with (
        listening(b"\x00\x00\x00\x01?") as url,
        contextlib.closing(client(url, contact_patience_s=0)) as rest,
        pytest.raises(Unreachable, match=r"Check host and port of admin\.url"),
    ):
        rest.json("GET", "/x")


def test_address_that_answered_before_is_asked_for_the_whole_patience() -> None:
    with listening(ANSWER) as url, contextlib.closing(client(url, contact_patience_s=0, patience_s=0.1)) as rest:
        assert rest.json("GET", "/x") == {}
    with pytest.raises(Unreachable, match="no complete response"):
        rest.json("GET", "/x")
