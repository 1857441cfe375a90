"""`/admin/v3/console/...`: figures that only the web console needs. Each call uses the caller's permissions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import IDENTITY_KEY, Call, json_response, json_with_nulls
from pybroker.admin.calls.own_address import broker_id
from pybroker.admin.calls.queries import Query
from pybroker.admin.calls.redirects import base_url
from pybroker.admin.calls.routing import route
from pybroker.admin.console.broker_parts import MEMBER_TOPICS, PAGE_ROWS, page_of
from pybroker.admin.console.cluster_routes import ClusterRoutes
from pybroker.admin.console.cluster_table import ClusterTable, ClusterView
from pybroker.admin.console.console_pages import ConsolePages
from pybroker.admin.console.live import LiveSampler, LiveStream, Subject, Viewer, disk_of
from pybroker.admin.console.topic_table import FIGURES, Asked, Row, StuckRow, TopicTable, find, find_stuck
from pybroker.broker.explain import bookies
from pybroker.broker.explain.membership import explain_membership
from pybroker.errors import AdminError, InvalidTopicName
from pybroker.model.findings import Finding
from pybroker.model.names import NamespaceName, TopicName
from pybroker.version import __version__
from pybroker.wire import core

if TYPE_CHECKING:
    from pybroker.admin.stats.rate_sampler import RateSampler
    from pybroker.broker.service import BrokerService
    from pybroker.cluster.broker_registry import RegisteredBroker

BASE = "/admin/v3/console"
STUCK = "/admin/v3/explain"
LIVE = BASE + "/live"
LIVE_TOPIC = LIVE + "/{domain}/{tenant}/{namespace}/{topic}"
MAX_ROWS = 500
DEFAULT_ROWS = 50
MAX_SEARCH_CHARACTERS = 200
EVENTS = "text/event-stream"


def _member(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


SORTS = {"name": "name", "broker": "broker", **{_member(name): name for name in FIGURES}}
"""Sort keys and their fields of Row."""
LISTED = (
    Query("search", "words that a topic's name must contain"),
    Query("sort", "sort key", str, "name", tuple(SORTS)),
    Query("order", "`desc`: largest first", str, values=("asc", "desc")),
    Query("loaded", "only loaded topics", bool),
    Query("broker", "in a cluster: only topics of the broker with this id"),
    Query("local", "in a cluster: only data of this broker, without requests to other brokers", bool),
    Query("offset", "number of skipped rows", int, 0),
    Query("limit", f"maximum number of rows, up to {MAX_ROWS}", int, DEFAULT_ROWS),
)
STUCK_QUERIES = tuple(each for each in LISTED if each.name in {"search", "broker", "local", "offset", "limit"})
PAGED = (
    Query("offset", "number of skipped topics", int, 0),
    Query("limit", f"maximum number of topics, up to {PAGE_ROWS}", int, PAGE_ROWS),
)
ASKED_RIGHTS = (
    Query("topic", "full topic name whose permissions are returned"),
    Query("subscription", "subscription of the topic whose permissions are returned"),
)


class ConsoleRoutes:
    """Routes of the console's figures and live streams."""

    def __init__(self, broker: BrokerService, rates: RateSampler) -> None:
        self._broker = broker
        self._rates = rates
        self._pages = ConsolePages()
        self.table = TopicTable(broker, rates)
        self._cluster_table = ClusterTable(broker, self.table)
        self.sampler = LiveSampler(broker)
        self._cluster = ClusterRoutes(broker, rates)

    def routes(self) -> list[Route]:
        return [
            *self._pages.routes(),
            *self._cluster.routes(),
            route("GET", BASE + "/topics", self.list_topics, queries=LISTED),
            route("GET", MEMBER_TOPICS, self.list_topics_of_broker, queries=PAGED),
            route("GET", STUCK, self.list_stuck, queries=STUCK_QUERIES),
            route("GET", BASE + "/rights", self.get_rights, queries=ASKED_RIGHTS),
            route("GET", BASE + "/broker", self.get_broker),
            route("GET", LIVE, self.watch_broker),
            route("GET", LIVE_TOPIC, self.watch_topic),
            route("GET", LIVE_TOPIC + "/subscription/{subscription}", self.watch_subscription),
        ]

    # --- lists -------------------------------------------------------------------------------------------------------

    async def list_topics(self, call: Call) -> Response:
        """List the topics of all namespaces that the caller may list, with their rates and backlogs, in pages. In a
        cluster, the list contains the figures of all brokers; `brokers` states which figures are missing.
        """
        asked = _asked(call)
        view = await self._view(call)
        table = view.table
        found = await find(table, asked, (await _Lists.of(call)).may_list, self._broker.runtime.clock)
        return json_response(
            {
                "topics": [_shown(row) for row in found.rows],
                "matching": found.matching,
                "all": found.all,
                "sums": {_member(name): value for name, value in found.sums.items()},
                "isCut": table.is_cut,
                "time": table.wall_ms,
                **self._shown_brokers(call, view),
            }
        )

    async def list_topics_of_broker(self, call: Call) -> Response:
        """List the loaded topics and the stuck topics of this broker, in pages, for the other brokers of the cluster."""
        await call.require_superuser()
        offset, limit = call.query_integer("offset", 0), call.query_integer("limit", PAGE_ROWS)
        if not 1 <= limit <= PAGE_ROWS or offset < 0:
            raise AdminError(400, f"The query parameter limit must be from 1 to {PAGE_ROWS}, and offset 0 or more")
        table = await self.table.current()
        findings = [] if offset else [each.as_json() for each in await self._of_broker(call)]
        return json_with_nulls(page_of(table, findings, offset, limit))

    async def list_stuck(self, call: Call) -> Response:
        """List stuck topics in pages, each with the most important reason why its messages wait. In a cluster, the list
        contains the topics of all brokers, except of brokers with a `problem` in `brokers`.

        Blocked topics come first, then the largest backlogs. The list contains topics that the caller may list and
        consume from. A superuser also gets problems of whole brokers, such as unusable bookies.
        """
        offset, limit = _page(call)
        view = await self._view(call)
        lists = await _Lists.of(call)
        found = await find_stuck(
            view.table,
            Asked(_words(call), broker=call.query("broker") or None),
            lists.may_list,
            lists.may_explain,
            self._broker.runtime.clock,
        )
        brokers = self._shown_brokers(call, view)
        of_this = [each.as_json() for each in await self._of_broker(call)]
        if brokers:
            of_this = [{**each, "broker": broker_id(call)} for each in of_this]
        return json_with_nulls(
            {
                "broker": [*of_this, *(view.findings if lists.is_of_superuser else ())],
                "topics": [_shown_stuck(each) for each in found[offset : offset + limit]],
                "matching": len(found),
                "isCut": view.table.is_cut,
                "time": view.table.wall_ms,
                **brokers,
            }
        )

    async def _view(self, call: Call) -> ClusterView:
        if not call.flag("local"):
            return await self._cluster_table.current()
        table = await self.table.current()
        return ClusterView(table, [], table.monotonic_ms)

    def _shown_brokers(self, call: Call, view: ClusterView) -> dict[str, Any]:
        """Return the JSON member `brokers`, with `problem` if the figures of a broker are missing; none for a standalone
        broker, or with `local`.
        """
        ownership = self._broker.ownership
        if ownership is None or call.flag("local"):
            return {}
        own = ownership.registry.own_broker
        shown = [_shown_broker(call, own, "", is_pybroker=True)]
        shown += [_shown_broker(call, each.broker, each.problem, is_pybroker=each.is_pybroker) for each in view.parts]
        return {"brokers": sorted(shown, key=lambda each: str(each["id"])), "own": own.broker_id}

    async def _of_broker(self, call: Call) -> list[Finding]:
        if not await may(call.require_superuser):
            return []
        membership = self._broker.membership
        of_cluster = explain_membership(None if membership is None else membership.report())
        return [*of_cluster, *bookies.of_broker(self._broker.ledgers.store, self._broker.runtime.clock)]

    async def get_rights(self, call: Call) -> Response:
        """Return the caller's role, its general permissions, and its permissions for the query's `topic` and
        `subscription`.
        """
        shown: dict[str, Any] = {
            "authentication": call.config.authentication_enabled,
            "authorization": call.config.authorization_enabled,
            "superuser": await may(call.require_superuser),
        }
        if call.role is not None:
            shown["role"] = call.role
        text = call.query("topic")
        if text:
            try:
                topic = TopicName.parse(text)
            except InvalidTopicName as error:
                raise AdminError(412, f"Topic name is not valid: {error}") from error
            shown["topic"] = {
                "lookup": await may(call.require_lookup, topic),
                "produce": await may(call.require_produce, topic),
                "consume": await may(call.require_consume, topic, call.query("subscription") or ""),
                "administer": await may(call.require_topic_admin, topic),
            }
        return json_response(shown)

    async def get_broker(self, call: Call) -> Response:
        """Return the version, state and resource usage of this broker."""
        await call.require_superuser()
        broker, runtime = self._broker, self._broker.runtime
        clock, stats, config, memory = runtime.clock, runtime.stats, call.config, runtime.memory
        now_ms = clock.monotonic_ms()
        resources = self._rates.resources
        return json_response(
            {
                "version": __version__,
                "wireCore": core.IMPLEMENTATION,
                "brokerId": broker_id(call),
                "cluster": config.cluster_name,
                "startedAt": self._rates.started_wall_ms,
                "time": clock.wall_ms(),
                "unready": broker.unready_reason() or "",
                "loadedTopics": len(broker.loaded.persistent) + len(broker.loaded.non_persistent),
                "loadingTopics": broker.topics.loading_count,
                "cpuPercent": resources.cpu.usage,
                "cpuLimitPercent": resources.cpu.limit,
                "residentBytes": round(resources.memory.usage * (1 << 20)),
                "memoryLimitBytes": memory.process_limit_bytes,
                "loopLagMs": stats.loop_lag_ms,
                **disk_of(broker),
                "memory": [
                    {
                        "part": part.name,
                        "usedBytes": part.used_bytes,
                        "boundBytes": part.most_bytes,
                        "waiting": part.waiting,
                        "longestWaitMs": round(part.longest_wait_ms(now_ms)),
                        "waitsTotal": part.waits_total,
                    }
                    for part in memory.budget.parts.values()
                ],
                "limits": [
                    _limit(
                        "connections", stats.active_connections, config.broker_max_connections, "brokerMaxConnections"
                    ),
                    _limit(
                        "topics being loaded",
                        broker.topics.loading_count,
                        config.max_concurrent_topic_load_request,
                        "maxConcurrentTopicLoadRequest",
                    ),
                    _limit(
                        "live connections of the console",
                        self.sampler.streams,
                        config.console_max_live_connections,
                        "consoleMaxLiveConnections",
                    ),
                ],
            }
        )

    # --- live --------------------------------------------------------------------------------------------------------

    async def watch_broker(self, call: Call) -> Response:
        """Stream the broker's figures as server-sent events, one point every `consoleSampleIntervalMs`.

        Events: `begin` (names of the figures), `points`, `challenge` (the credentials expire at `expiresAt`, Unix
        milliseconds), and `end` with the reason. The request must accept
        `text/event-stream`.
        """
        return await self._stream(call, Subject(), call.require_superuser)

    async def watch_topic(self, call: Call) -> Response:
        """Stream one topic's figures as server-sent events. This does not load the topic. While the topic is not
        loaded, points contain no figures.
        """
        name = call.topic_name()
        return await self._stream(call, Subject(name), lambda: call.require_lookup(name))

    async def watch_subscription(self, call: Call) -> Response:
        """Stream one subscription's figures as server-sent events."""
        name = call.topic_name()
        return await self._stream(call, Subject(name, call.name("subscription")), lambda: call.require_lookup(name))

    async def _stream(self, call: Call, subject: Subject, ask: Callable[[], Awaitable[None]]) -> Response:
        permission = self._broker.broker_context.authorization.permission(ask)
        await permission.require()
        if EVENTS not in call.headers.get("accept", ""):
            raise AdminError(406, f"The request needs the header Accept: {EVENTS}")
        viewer = Viewer(self._broker.runtime, call.scope[IDENTITY_KEY], permission)
        return LiveStream(self.sampler, subject, call.holder, viewer)

    async def close(self) -> None:
        """End the live streams. Must be called before the server waits for running requests, because streams are such
        requests.
        """
        await self.sampler.close()


class _Lists:
    """The lists that the caller of `call` may see. A superuser sees all; others are asked for each namespace and topic."""

    def __init__(self, call: Call, *, is_of_superuser: bool) -> None:
        self._call = call
        self.is_of_superuser = is_of_superuser

    @classmethod
    async def of(cls, call: Call) -> _Lists:
        return cls(call, is_of_superuser=await may(call.require_superuser))

    async def may_list(self, namespace: NamespaceName) -> bool:
        return self.is_of_superuser or await may(self._call.require_list_topics, namespace)

    async def may_explain(self, topic: str) -> bool:
        return self.is_of_superuser or await may(self._call.require_consume, TopicName.parse(topic), "")


async def may(require: Callable[..., Awaitable[None]], *what: Any) -> bool:
    try:
        await require(*what)
    except AdminError:
        return False
    return True


def _asked(call: Call) -> Asked:
    words = _words(call)
    order = call.query("sort") or "name"
    if order not in SORTS:
        raise AdminError(400, f"The query parameter sort must be one of {', '.join(SORTS)}")
    offset, limit = _page(call)
    is_descending = call.query("order") == "desc"
    return Asked(words, SORTS[order], is_descending, offset, limit, call.flag("loaded"), call.query("broker") or None)


def _page(call: Call) -> tuple[int, int]:
    limit, offset = call.query_integer("limit", DEFAULT_ROWS), call.query_integer("offset", 0)
    if not 1 <= limit <= MAX_ROWS or offset < 0:
        raise AdminError(400, f"The query parameter limit must be from 1 to {MAX_ROWS}, and offset 0 or more")
    return offset, limit


def _words(call: Call) -> tuple[str, ...]:
    search = call.query("search") or ""
    if len(search) > MAX_SEARCH_CHARACTERS:
        raise AdminError(400, f"The query parameter search is longer than {MAX_SEARCH_CHARACTERS} characters")
    return tuple(search.lower().split())


def _shown(row: Row) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": row.name, "loaded": row.is_loaded}
    if row.is_loaded:
        shown |= {_member(name): round(value, 3) for name, value in zip(FIGURES, row.figures, strict=True)}
    if row.broker:
        shown["broker"] = row.broker
    return shown


def _shown_stuck(stuck: StuckRow) -> dict[str, Any]:
    shown = {
        "topic": stuck.topic,
        "blocked": stuck.is_blocked,
        "standing": stuck.subscriptions,
        "subscription": stuck.subscription,
        "backlog": stuck.backlog_entries,
        "finding": stuck.finding,
    }
    return {**shown, "broker": stuck.broker} if stuck.broker else shown


def _shown_broker(call: Call, broker: RegisteredBroker, problem: str, *, is_pybroker: bool) -> dict[str, Any]:
    return {
        "id": broker.broker_id,
        "webUrl": base_url(broker.addresses, call.scope["scheme"]),
        "isPybroker": is_pybroker,
        "problem": problem,
    }


def _limit(what: str, used: int, limit: int, key: str) -> dict[str, Any]:
    return {"what": what, "used": used, "limit": limit, "key": key}
