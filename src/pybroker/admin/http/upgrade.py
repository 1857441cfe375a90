"""Handover of an HTTP connection to another protocol, after the request of a client with an `Upgrade` header."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from starlette.responses import Response

from pybroker.admin.calls.call import ClientGone

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

UPGRADE_KEY = "upgrade"
"""Key in `scope["state"]` of the connection's `Upgrade`."""


class UpgradedConnection(ABC):
    """A connection after the upgrade. The HTTP server calls it from the event loop until `connection_lost`."""

    @abstractmethod
    def connection_made(self, transport: asyncio.Transport, reading: Reading) -> None: ...

    @abstractmethod
    def data_received(self, data: bytes) -> None: ...

    @abstractmethod
    def connection_lost(self) -> None: ...

    @abstractmethod
    def pause_writing(self) -> None: ...

    @abstractmethod
    def resume_writing(self) -> None: ...

    @abstractmethod
    def shutdown(self) -> None:
        """Begin to close the connection, because the server stops."""


class Reading(NamedTuple):
    """Pauses and resumes the reading of a connection. Both may be called repeatedly."""

    pause: Callable[[], None]
    resume: Callable[[], None]


class Upgrade(ABC):
    """One HTTP connection that can be handed over."""

    @abstractmethod
    def hand_over(self, connection: UpgradedConnection, head: bytes) -> None:
        """Send `head`, the complete response head with status 101. From then on, `connection` receives the data of the
        client.
        """


class SwitchingProtocols(Response):
    """The response 101, after which the connection speaks another protocol."""

    def __init__(self, connection: UpgradedConnection, head: bytes) -> None:
        super().__init__(status_code=101)
        self._connection = connection
        self._head = head

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the connection over. Raises ClientGone if the client has disconnected."""
        upgrade: Upgrade = scope["state"][UPGRADE_KEY]
        transport: asyncio.Transport = scope["state"]["transport"]
        if transport.is_closing():
            raise ClientGone
        upgrade.hand_over(self._connection, self._head)
