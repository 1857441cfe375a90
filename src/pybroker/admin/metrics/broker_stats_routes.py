"""`/admin/v2/broker-stats/...`: figures of the broker as JSON, for older tools.

Calls about Java beans, pooled allocators and BookKeeper return empty responses in Pulsar's format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import isnan
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call, json_response
from pybroker.admin.calls.routing import route
from pybroker.admin.metrics import figures
from pybroker.admin.metrics.ledger_metrics import BUCKETS, LEDGER_NAMES, LedgerSums
from pybroker.admin.metrics.metrics_routes import TextStream
from pybroker.admin.slices import exhaust, sliced
from pybroker.admin.stats.broker_load import load_report
from pybroker.admin.stats.broker_topic_stats import NO_LEDGER_OPERATIONS, broker_topic_stats
from pybroker.admin.stats.bundle_load import BundleLoad, bundle_loads, bundle_of
from pybroker.errors import AdminError

if TYPE_CHECKING:
    from pybroker.admin.metrics.exposition_text import Number
    from pybroker.admin.stats.rate_sampler import RateSampler
    from pybroker.broker.service import BrokerService
    from pybroker.broker.topic.topic_base import TopicBase

BASE = "/admin/v2/broker-stats"
JSON = "application/json"
_ALLOCATORS = ("default", "ml-cache")
_NO_ARENAS = {
    "numDirectArenas": 0,
    "numHeapArenas": 0,
    "numThreadLocalCaches": 0,
    "normalCacheSize": 0,
    "smallCacheSize": 0,
    "usedHeapMemory": 0,
    "directArenas": [],
    "heapArenas": [],
}


class BrokerStatsRoutes:
    """Routes of the broker statistics."""

    def __init__(self, rates: RateSampler) -> None:
        self._rates = rates

    def routes(self) -> list[Route]:
        return [
            route("GET", BASE + "/metrics", self.get_metrics),
            route("GET", BASE + "/topics", self.get_topics),
            route("GET", BASE + "/load-report", self.get_load_report),
            route("GET", BASE + "/allocator-stats/{allocator}", get_allocator),
            route("GET", BASE + "/mbeans", get_beans),
            route("GET", BASE + "/bookieops", get_bookie_operations),
            route("GET", BASE + "/broker-resource-availability/{tenant}/{namespace}", refuse_availability),
        ]

    async def get_metrics(self, call: Call) -> Response:
        """Return groups of figures, each group with its dimensions (labels)."""
        await call.require_superuser()
        broker, rates = call.broker, self._rates
        about = {"broker": figures.broker_host(broker), "cluster": call.config.cluster_name}
        ledgers: dict[str, LedgerSums] = {}
        await exhaust(_sum_ledgers(broker, rates, ledgers), broker.runtime.clock)
        groups = [
            _group({}, figures.cache_figures(broker, rates.broker)),
            _group(
                {**about, "metric": figures.TOPIC_LOADS},
                figures.topic_load_figures(broker.runtime.stats, rates.broker),
            ),
            _group({**about, "metric": figures.CONNECTIONS}, figures.connection_figures(broker.runtime.stats)),
            _group({**about, "metric": figures.HEALTH}, figures.health_figures(broker.runtime.stats)),
            _group({**about, "metric": figures.LOAD}, figures.load_figures(rates.resources)),
        ]
        window_s = call.config.stats_update_frequency_in_secs
        groups += [_group({"namespace": name}, _ledger_figures(sums, window_s)) for name, sums in ledgers.items()]
        return json_response(groups)

    async def get_topics(self, call: Call) -> Response:
        """Return statistics of all topics by namespace, bundle and domain."""
        await call.require_superuser()
        return _stream(call, _topics_text(call.broker, self._rates))

    async def get_load_report(self, call: Call) -> Response:
        """Return the load report of this broker."""
        await call.require_superuser()
        loads: dict[str, BundleLoad] = {}
        await exhaust(bundle_loads(call.broker, self._rates, loads), call.runtime.clock)
        return json_response(load_report(call.broker, self._rates, loads))


def _stream(call: Call, pieces: Iterator[str]) -> TextStream:
    return TextStream(
        sliced(pieces, call.runtime.clock), call.config.metrics_servlet_timeout_ms / 1000, media_type=JSON
    )


def _group(dimensions: dict[str, str], values: dict[str, Number]) -> dict[str, Any]:
    # JSON has no NaN; Java's libraries write it as a string.
    shown = {f"brk_{name}": "NaN" if isnan(value) else value for name, value in sorted(values.items())}
    return {"metrics": shown, "dimensions": dimensions}


def _sum_ledgers(broker: BrokerService, rates: RateSampler, sums: dict[str, LedgerSums]) -> Iterator[None]:
    for topic in list(broker.loaded.persistent.values()):
        key = f"{topic.name.namespace}/{topic.name.domain}"
        backlog = sum(subscription.cursor.backlog_entries for subscription in topic.subscriptions.values())
        sums.setdefault(key, LedgerSums()).add(topic.ledger, rates.topic(topic), backlog)
        yield


def _ledger_figures(sums: LedgerSums, window_s: float) -> dict[str, Number]:
    values: dict[str, Number] = {f"ml_{name}": value for name, value in zip(LEDGER_NAMES, sums.values, strict=True)}
    for name in BUCKETS:
        values |= {f"ml_{name}_{bounds}": value for bounds, value in sums.buckets(name, window_s).items()}
    return values


def _topics_text(broker: BrokerService, rates: RateSampler) -> Iterator[str]:
    """Yield the JSON `{namespace: {bundle: {domain: {topic: stats}}}}` in one part per topic."""
    tree: dict[str, dict[str, dict[str, dict[str, TopicBase]]]] = {}
    for topic in broker.loaded.all():
        bundles = tree.setdefault(str(topic.name.namespace), {})
        domains = bundles.setdefault(bundle_of(broker, topic), {})
        domains.setdefault(topic.name.domain, {})[str(topic.name)] = topic
        yield ""
    yield from _tree_text(tree, lambda topic: _text(broker_topic_stats(topic, rates)))


def _tree_text(node: Any, leaf_text: Callable[[Any], str]) -> Iterator[str]:
    if not isinstance(node, dict):
        yield leaf_text(node)
        return
    separator = "{"
    for name, child in sorted(node.items()):
        yield f"{separator}{_text(name)}:"
        yield from _tree_text(child, leaf_text)
        separator = ","
    yield "}" if node else "{}"


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()


async def get_allocator(call: Call) -> Response:
    """Return the memory of messages in bytes: `default` for published messages that are not stored yet, `ml-cache` for
    cached messages.
    """
    await call.require_superuser()
    name = call.name("allocator")
    if name not in _ALLOCATORS:
        raise AdminError(406, f"Invalid allocator name : {name}")
    broker = call.broker
    used = broker.ledgers.cache.size_bytes if name == "ml-cache" else broker.runtime.memory.publishes.used_bytes
    return json_response({**_NO_ARENAS, "usedDirectMemory": used})


async def get_beans(call: Call) -> Response:
    """Return an empty list, because this is not a Java process."""
    await call.require_superuser()
    return json_response([])


async def get_bookie_operations(call: Call) -> Response:
    """Return zeros, because topics have no separate counts of BookKeeper operations."""
    await call.require_superuser()
    return _stream(call, _bookie_operations_text(call.broker))


def _bookie_operations_text(broker: BrokerService) -> Iterator[str]:
    tree: dict[str, dict[str, None]] = {}
    for topic in list(broker.loaded.persistent.values()):
        tree.setdefault(str(topic.name.namespace), {})[str(topic.name)] = None
        yield ""
    nothing = _text(NO_LEDGER_OPERATIONS)
    yield from _tree_text(tree, lambda _: nothing)


async def refuse_availability(call: Call) -> Response:
    await call.require_superuser()
    raise AdminError(409, "The load manager of this broker does not support this operation")
