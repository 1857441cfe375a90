"""A client of the WebSocket API for tests, on the library `websockets`."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

RECEIVE_TIMEOUT_S = 20.0
QUIET_S = 0.3


@dataclass(frozen=True)
class Refused(Exception):
    """The broker did not open the session."""

    status: int
    reason: str


class Socket:
    """One session."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def send(self, value: object) -> None:
        await self.connection.send(value if isinstance(value, (str, bytes)) else json.dumps(value))

    async def receive(self) -> Any:
        return json.loads(await asyncio.wait_for(self.connection.recv(), RECEIVE_TIMEOUT_S))

    async def publish(self, payload: bytes, **members: object) -> Any:
        await self.send({"payload": base64.b64encode(payload).decode(), **members})
        return await self.receive()

    async def payload(self) -> bytes:
        return base64.b64decode((await self.receive())["payload"])

    async def ack(self, message: Any) -> None:
        await self.send({"messageId": message["messageId"]})

    async def is_quiet(self) -> bool:
        """Return whether no message arrives for a moment."""
        try:
            await asyncio.wait_for(self.connection.recv(), QUIET_S)
        except TimeoutError:
            return True
        return False

    async def close_code(self) -> tuple[int, str]:
        """Wait until the broker closes the session; messages are skipped."""
        with contextlib.suppress(ConnectionClosed):
            while True:
                await asyncio.wait_for(self.connection.recv(), RECEIVE_TIMEOUT_S)
        return self.connection.close_code or 0, self.connection.close_reason or ""


@asynccontextmanager
async def session(admin_url: str, path: str, **options: Any) -> AsyncIterator[Socket]:
    """Open a session of the broker at `admin_url`; `path` begins with the kind and version, such as `v2/producer/`. Raises
    Refused.
    """
    url = f"{admin_url.replace('http', 'ws', 1)}/ws/{path}"
    try:
        connection = await connect(url, ping_interval=None, max_size=None, **options)
    except InvalidStatus as error:
        body = bytes(error.response.body or b"")
        raise Refused(error.response.status_code, json.loads(body).get("reason", "") if body else "") from None
    async with connection:
        yield Socket(connection)
