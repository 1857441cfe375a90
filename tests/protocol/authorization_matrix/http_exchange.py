"""An HTTP client on the test's event loop, which keeps its connection open: thousands of small requests in seconds."""

from __future__ import annotations

import asyncio
import json
from types import TracebackType
from typing import NamedTuple, Self

HOST = "127.0.0.1"
TIMEOUT_S = 30.0


class Answer(NamedTuple):
    status: int
    body: bytes


class HttpExchange:
    """One connection at a time. A response of unknown length ends the connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None

    async def send(self, method: str, path: str, body: object, headers: dict[str, str]) -> Answer:
        """Send a request and return the response. `body` is sent as JSON, bytes unchanged, None as no body."""
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        fields = {"Host": HOST, "Content-Type": "application/json", "Content-Length": str(len(data)), **headers}
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        async with asyncio.timeout(TIMEOUT_S):
            if self._writer is None:
                self._reader, self._writer = await asyncio.open_connection(HOST, self._port)
            assert self._reader is not None
            self._writer.write(head.encode() + b"\r\n" + data)
            lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            status = int(lines[0].split()[1])
            received = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
            length = received.get("content-length", "0" if status == 204 else None)
            content = b"" if length is None else await self._reader.readexactly(int(length))
        if length is None or received.get("connection") == "close":
            self._close()
        return Answer(status, content)
