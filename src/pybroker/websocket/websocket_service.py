"""The WebSocket service of a broker: its routes, metrics and sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pybroker.admin.http.web_service import WebService
from pybroker.websocket.proxy_stats import ProxyStatsRoutes
from pybroker.websocket.sessions import Sessions
from pybroker.websocket.websocket_routes import WebSocketRoutes

if TYPE_CHECKING:
    from starlette.routing import Route

    from pybroker.broker.service import BrokerService


class WebSocketService(WebService):
    """The service, which exists only with `webSocketServiceEnabled`."""

    def __init__(self, broker: BrokerService) -> None:
        self.sessions = Sessions(broker)

    def routes(self) -> Sequence[Route]:
        return [*WebSocketRoutes(self.sessions).routes(), *ProxyStatsRoutes(self.sessions).routes()]

    def figures(self) -> dict[str, int | float]:
        sessions = self.sessions
        totals = sessions.totals.current(sessions).values()
        return {
            "websocket_producers": sum(session.kind == "producer" for session in sessions),
            "websocket_consumers": sum(session.kind == "consumer" for session in sessions),
            "websocket_readers": sum(session.kind == "reader" for session in sessions),
            "websocket_waiting_sessions": sum(bool(session.waits_for) for session in sessions),
            "websocket_sessions_opened": sessions.opened_total,
            "websocket_sessions_refused": sessions.refused_total,
            "websocket_messages_published": sum(each.published for each in totals),
            "websocket_messages_delivered": sum(each.delivered for each in totals),
            "websocket_messages_failed": sum(each.failed for each in totals),
        }

    async def close(self, deadline_s: float) -> None:
        await self.sessions.close(deadline_s)
