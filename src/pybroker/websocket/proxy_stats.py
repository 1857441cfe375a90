"""`/admin/v2/proxy-stats`: the sessions of this broker, in the form of Pulsar's WebSocket proxy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call, json_response
from pybroker.admin.calls.routing import route
from pybroker.errors import AdminError
from pybroker.websocket.consumer_session import ConsumerSession
from pybroker.websocket.producer_session import ProducerSession

if TYPE_CHECKING:
    from pybroker.websocket.session import Session
    from pybroker.websocket.sessions import Sessions

PROXY_STATS = "/admin/v2/proxy-stats"


class ProducerStats(msgspec.Struct):
    """A producer session. `waitsFor` and `waitsSinceMs` (Unix time) are additions to Pulsar's members."""

    remoteConnection: str  # noqa: N815  (the names of the JSON members)
    numberOfMsgPublished: int  # noqa: N815
    waitsFor: str | None = None  # noqa: N815
    waitsSinceMs: int | None = None  # noqa: N815


class ConsumerStats(msgspec.Struct):
    """A consumer or reader session. The members after `numberOfMsgDelivered` are additions to Pulsar's."""

    remoteConnection: str  # noqa: N815
    subscriptionName: str  # noqa: N815
    subscriptionType: str  # noqa: N815
    subscriptionMode: str | None  # noqa: N815
    numberOfMsgDelivered: int  # noqa: N815
    unackedMessages: int  # noqa: N815
    waitsFor: str | None = None  # noqa: N815
    waitsSinceMs: int | None = None  # noqa: N815


class TopicStats(msgspec.Struct):
    """The sessions of one topic."""

    producerStats: list[ProducerStats] = []  # noqa: N815
    consumerStats: list[ConsumerStats] = []  # noqa: N815


class ProxyStatsRoutes:
    """Routes about the sessions of this broker only."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def routes(self) -> list[Route]:
        return [
            route("GET", PROXY_STATS + "/metrics", self.metrics),
            route("GET", PROXY_STATS + "/stats", self.all_stats),
            route(
                "GET",
                PROXY_STATS + "/{domain}/{tenant}/{namespace}/{topic}/stats",
                self.topic_stats,
                answers={404: "The topic has no WebSocket session on this broker"},
            ),
        ]

    async def metrics(self, call: Call) -> Response:
        """Return the messages and bytes of WebSocket sessions by namespace, since the broker started."""
        await call.require_superuser()
        totals = self._sessions.totals.current(self._sessions)
        return json_response([each.document(namespace) for namespace, each in totals.items()])

    async def all_stats(self, call: Call) -> Response:
        """Return the WebSocket sessions of this broker by topic."""
        await call.require_superuser()
        return json_response(self._by_topic())

    async def topic_stats(self, call: Call) -> Response:
        """Return the WebSocket sessions of a topic on this broker."""
        topic = call.topic_name()
        await call.require_topic_admin(topic)
        found = self._by_topic().get(str(topic))
        if found is None:
            raise AdminError(404, "Topic does not exist")
        return json_response(found)

    def _by_topic(self) -> dict[str, TopicStats]:
        topics: dict[str, TopicStats] = {}
        for session in self._sessions:
            for topic in session.topic.split(","):
                stats = topics.setdefault(topic, TopicStats())
                if isinstance(session, ProducerSession):
                    stats.producerStats.append(
                        ProducerStats(session.connection.address, session.messages_sent, *_waiting(session))
                    )
                elif isinstance(session, ConsumerSession):
                    stats.consumerStats.append(_consumer_stats(session))
        return topics


def _consumer_stats(session: ConsumerSession) -> ConsumerStats:
    return ConsumerStats(
        session.connection.address,
        session.subscription,
        session.parameters.subscription_type,
        session.parameters.subscription_mode,
        session.messages_delivered,
        session.unacked_messages,
        *_waiting(session),
    )


def _waiting(session: Session) -> tuple[str | None, int | None]:
    if not session.waits_for:
        return None, None
    return session.waits_for, int(session.waits_since_ms)
