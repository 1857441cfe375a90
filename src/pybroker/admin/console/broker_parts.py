"""The loaded topics of the other brokers of a cluster, for the table of topics and the list of stuck topics.

Each broker has a route that lists its loaded topics in pages (`MEMBER_TOPICS`). Java brokers do not have this route:
only the bundles that they own are known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import msgspec

from pybroker.admin.console.topic_table import ROW_BYTES, Row, StuckRow, Table
from pybroker.cluster.bundles import Bundle
from pybroker.errors import AdminError, ServiceNotReady
from pybroker.memory.broker_memory import Holding

if TYPE_CHECKING:
    from pybroker.broker.lifecycle.other_brokers import OtherBrokers
    from pybroker.broker.service import BrokerService
    from pybroker.cluster.broker_registry import RegisteredBroker
    from pybroker.cluster.ownership.bundle_ownership import BundleOwnership

MEMBER_TOPICS = "/admin/v3/console/cluster/topics"
PAGE_ROWS = 2000
"""Topics per page: a few milliseconds to write or read."""
PROBE_S = 1.5
"""Time for any HTTP response of a broker."""
DEADLINE_S = 4.0
"""Time for all pages of a broker."""
PAUSE_MS = 10_000
"""A broker that did not respond is not asked again for this time, so that it does not delay every list."""
NOT_FOUND = 404
SLASHES_OF_TOPIC = 4


class Page(msgspec.Struct):
    """Response of `MEMBER_TOPICS`: a page of the loaded topics and of the stuck topics of one broker."""

    topics: list[Row]
    stuck: list[StuckRow]
    findings: list[dict[str, Any]]
    """Findings about the whole broker, in the first page."""
    is_cut: bool
    """True if the broker has more topics than its `consoleMaxTopics`."""
    has_more: bool


class BrokerPart(NamedTuple):
    """One broker's part of the table of a cluster."""

    broker: RegisteredBroker
    is_pybroker: bool
    problem: str = ""
    """Why the figures of this broker are missing; empty if they are complete."""
    topics: Sequence[Row] = ()
    stuck: Sequence[StuckRow] = ()
    findings: Sequence[dict[str, Any]] = ()
    bundles: Mapping[str, Sequence[Bundle]] = MappingProxyType({})
    """The owned bundles by namespace."""
    is_cut: bool = False


class RowBudget:
    """The number of rows that the other brokers may still send, shared by concurrent requests."""

    def __init__(self, rows: int, room: Holding) -> None:
        self._left = rows
        self._used = 0
        self._room = room

    def take(self, rows: int) -> int:
        """Reserve up to `rows` rows. Return the number of reserved rows; 0 if none are left."""
        taken = min(rows, self._left)
        self._left -= taken
        self._used += taken
        self._room.count(self._used * ROW_BYTES)
        return taken

    def give_back(self, rows: int) -> None:
        self._left += rows
        self._used -= rows


def page_of(table: Table, findings: list[dict[str, Any]], offset: int, limit: int) -> Page:
    """Return the response of this broker to the request of another broker: loaded and stuck topics from `offset` on, at most
    `limit` of each. The first page contains `findings`, which are about the whole broker.
    """
    loaded = [row for rows in table.namespaces.values() for row in rows if row.is_loaded]
    stuck = [each for found in table.stuck.values() for each in found]
    end = offset + limit
    has_more = max(len(loaded), len(stuck)) > end
    return Page(loaded[offset:end], stuck[offset:end], [] if offset else findings, table.is_cut, has_more)


class BrokerParts:
    """Requests to the other brokers, with the credentials `brokerClient*`. Bounded in time and rows."""

    def __init__(self, broker: BrokerService) -> None:
        self._broker = broker
        self._runtime = broker.runtime
        self._failed: dict[str, tuple[float, BrokerPart]] = {}
        """Brokers that did not respond, with the time from which they are asked again."""

    async def ask(self, ownership: BundleOwnership, max_rows: int) -> list[BrokerPart]:
        """Return the loaded and stuck topics of each other registered broker, sorted by broker id. If the
        topics of a broker cannot be fetched, `problem` is the reason. `max_rows`: maximum number of loaded topics of
        all brokers together; above it, `is_cut` is true.
        """
        own = ownership.registry.own_broker.broker_id
        brokers = [each for name, each in sorted(ownership.registry.brokers().items()) if name != own]
        now_ms = self._runtime.clock.monotonic_ms()
        self._failed = {name: each for name, each in self._failed.items() if each[0] > now_ms}
        room = Holding(self._runtime.memory, self._runtime.memory.lists)
        budget = RowBudget(max_rows, room)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._part(each, budget)) for each in brokers]
        finally:
            room.close()
        return [each.result() for each in tasks]

    async def _part(self, broker: RegisteredBroker, budget: RowBudget) -> BrokerPart:
        failed = self._failed.get(broker.broker_id)
        if failed is not None and failed[1].broker == broker:
            return failed[1]
        membership, others = self._broker.membership, self._broker.other_brokers
        assert others is not None, "a broker with an ownership has it"
        registration = None if membership is None else membership.registrations.get(broker.broker_id)
        part = BrokerPart(broker, registration is None or registration.is_pybroker)
        url = broker.web_service_url or broker.web_service_url_tls
        try:
            if not await others.is_answering(url, PROBE_S):
                return self._failure(part, "does not respond")
            async with asyncio.timeout(DEADLINE_S):
                part = await self._with_bundles(part, others, url)
                if not part.is_pybroker:
                    version = f" (version {broker.version})" if broker.version else ""
                    return part._replace(problem=f"is a Java broker{version}, which sends no figures for this list")
                return await self._with_topics(part, others, url, budget)
        except TimeoutError:
            return self._failure(part, f"has not sent its topics within {DEADLINE_S:g} seconds")
        except ServiceNotReady as error:
            return self._failure(part, f"does not respond ({error})")
        except AdminError as error:
            if error.status == NOT_FOUND:
                return self._failure(part, f"has version {broker.version}, which sends no figures to other brokers")
            return self._failure(part, f"answered {error.status}: {error.reason}")
        except ValueError as error:
            return self._failure(part, f"sent a response that this broker cannot read: {error}")

    def _failure(self, part: BrokerPart, problem: str) -> BrokerPart:
        found = part._replace(problem=problem)
        self._failed[part.broker.broker_id] = self._runtime.clock.monotonic_ms() + PAUSE_MS, found
        return found

    async def _with_bundles(self, part: BrokerPart, others: OtherBrokers, url: str) -> BrokerPart:
        cluster, broker_id = quote(self._runtime.config.cluster_name, safe=""), quote(part.broker.broker_id, safe="")
        path = f"/admin/v2/brokers/{cluster}/{broker_id}/ownedNamespaces"
        owned = await others.call(url, "GET", path, patience_s=0)
        return part._replace(bundles=bundles_by_namespace(msgspec.convert(owned or {}, dict[str, Any])))

    async def _with_topics(self, part: BrokerPart, others: OtherBrokers, url: str, budget: RowBudget) -> BrokerPart:
        topics: list[Row] = []
        stuck: list[StuckRow] = []
        findings: list[dict[str, Any]] = []
        offset, is_cut = 0, False
        while True:
            limit = budget.take(PAGE_ROWS)
            if not limit:
                return part._replace(topics=topics, stuck=stuck, findings=findings, is_cut=True)
            answer = await others.call(url, "GET", f"{MEMBER_TOPICS}?offset={offset}&limit={limit}", patience_s=0)
            page = checked_page(answer)
            topics += page.topics[:limit]
            stuck += page.stuck[:limit]
            findings += page.findings
            is_cut = is_cut or page.is_cut
            budget.give_back(limit - len(page.topics[:limit]))
            if not page.has_more:
                return part._replace(topics=topics, stuck=stuck, findings=findings, is_cut=is_cut)
            offset += limit


def checked_page(answer: Any) -> Page:
    """Return the page in a decoded JSON response. Raises ValueError if the JSON is not a page, or contains a name that
    is not a full topic name.
    """
    page = msgspec.convert(answer, Page)
    for each in (*(row.name for row in page.topics), *(stuck.topic for stuck in page.stuck)):
        if "://" not in each or each.count("/") < SLASHES_OF_TOPIC:
            raise ValueError(f"{each!r} is not a topic name")
    return page


def bundles_by_namespace(owned: Iterable[str]) -> dict[str, list[Bundle]]:
    """Group bundle names such as `tenant/namespace/0x00000000_0x40000000` by namespace. Raises ValueError for a name of
    another form.
    """
    found: dict[str, list[Bundle]] = {}
    for name in owned:
        namespace, _, bounds = name.rpartition("/")
        lower, _, upper = bounds.partition("_")
        found.setdefault(namespace, []).append(Bundle(int(lower, 16), int(upper, 16)))
    return found
