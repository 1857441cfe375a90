"""Permissions of open WebSocket sessions, which end when a permission is revoked.

The broker that serves the topic also checks the session's producer or consumer, but by the role of its connection. For a
session with a TLS certificate, this is the role of the broker's own client (`brokerClientAuthenticationPlugin`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from websockets.frames import CloseCode

from pybroker.errors import BrokerError
from pybroker.runtime import logs
from pybroker.runtime.tasks import all_results

if TYPE_CHECKING:
    from pybroker.model.names import NamespaceName
    from pybroker.websocket.session import Session

CHECKED_AT_ONCE = 16
"""Sessions for which questions are pending at a time."""


class SessionPermissions:
    """Checks the permissions of all sessions of a broker again after a change of permissions."""

    def __init__(self, sessions: Iterable[Session]) -> None:
        self._sessions = sessions

    async def close_revoked(self, scope: NamespaceName | str | None) -> None:
        """Close the sessions that have lost their permission. `scope`: check only sessions with topics in this
        namespace or tenant; None: check all sessions.
        """
        left = iter(list(self._sessions))
        await all_results(self._visit(left, scope) for _ in range(CHECKED_AT_ONCE))

    async def _visit(self, sessions: Iterator[Session], scope: NamespaceName | str | None) -> None:
        for session in sessions:
            if session.permission is None or not session.permission.is_in(scope):
                continue
            try:
                await session.permission.permission.require()
            except BrokerError as error:
                logs.info(
                    "websocket.right_revoked",
                    kind=session.kind,
                    topic=session.topic,
                    address=session.connection.address,
                    reason=str(error),
                )
                session.connection.close(CloseCode.POLICY_VIOLATION, str(error))
