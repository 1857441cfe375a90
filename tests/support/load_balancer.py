"""A TCP load balancer that sends a PROXY header to the broker in front of each connection's data."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address


def header_v1(host: str, port: int) -> bytes:
    return f"PROXY TCP{ip_address(host).version} {host} {host} {port} 6650\r\n".encode()


def header_v2(host: str, port: int) -> bytes:
    packed = ip_address(host).packed
    body = (
        packed * 2 + port.to_bytes(2, "big") + (6650).to_bytes(2, "big") + b"\x04\x00\x03abc"
    )  # and an optional field
    family = 0x11 if len(packed) == 4 else 0x21
    return b"\r\n\r\n\x00\r\nQUIT\n" + bytes((0x21, family)) + len(body).to_bytes(2, "big") + body


@contextmanager
def load_balancer(target_port: int, header: bytes) -> Iterator[int]:
    """Forward connections to `target_port` of 127.0.0.1. Yields the own port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ends: list[socket.socket] = []
        threads: list[threading.Thread] = []

        def relay(source: socket.socket, sink: socket.socket) -> None:
            with suppress(OSError):
                while data := source.recv(1 << 16):
                    sink.sendall(data)
            with suppress(OSError):
                sink.shutdown(socket.SHUT_WR)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    client, _ = listening.accept()
                    broker = socket.create_connection(("127.0.0.1", target_port))
                    ends.extend((client, broker))
                    broker.sendall(header)
                    for pair in ((client, broker), (broker, client)):
                        threads.append(threading.Thread(target=relay, args=pair, daemon=True))
                        threads[-1].start()

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        try:
            yield listening.getsockname()[1]
        finally:
            with suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for end in ends:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()
            for end in ends:
                end.close()
