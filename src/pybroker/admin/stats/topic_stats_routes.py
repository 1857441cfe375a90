"""REST routes of the statistics of a topic or its partitions.

Paths: `/admin/v2/{persistent|non-persistent}/{tenant}/{namespace}/{topic}/stats` and similar.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call, json_with_nulls
from pybroker.admin.calls.existing import existing_any_topic
from pybroker.admin.calls.existing_namespaces import namespace_of_topics
from pybroker.admin.calls.own_address import broker_id
from pybroker.admin.calls.partition_calls import call_owner, other_owner
from pybroker.admin.calls.partitions import topics_of
from pybroker.admin.calls.queries import Query
from pybroker.admin.calls.route_paths import TOPIC
from pybroker.admin.calls.routing import route
from pybroker.admin.stats.internal_stats import shown_stats
from pybroker.admin.stats.partitioned_stats import partitioned_stats
from pybroker.admin.stats.topic_stats import Document, Measured, StatsRequest, topic_stats
from pybroker.broker.topic.backlog_quota import estimated_backlog_bytes, slowest_subscription
from pybroker.broker.topic.backlog_rules import estimated_bytes_behind
from pybroker.broker.topic.topic import Topic
from pybroker.broker.topic.topic_base import TopicBase
from pybroker.errors import AdminError, StoreError, TopicNotFound
from pybroker.model.names import TopicName
from pybroker.runtime.time_slices import in_slices

if TYPE_CHECKING:
    from pybroker.admin.stats.rate_sampler import RateSampler
    from pybroker.broker.delivery.subscription import Subscription
    from pybroker.broker.delivery.subscription_base import SubscriptionBase

NOT_ASKED_FOR = -1
PARTITION_MARK = "-partition-"
SHOWN = (
    Query("subscriptionBacklogSize", "include the exact size of each backlog, in bytes", bool, True),
    Query("getEarliestTimeInBacklog", "include the publish time of the oldest message of each backlog", bool),
    Query("excludePublishers", "without producers", bool),
    Query("excludeConsumers", "without consumers", bool),
)
PER_PARTITION = Query("perPartition", "include each partition", bool, True)


class TopicStatsRoutes:
    """Routes of topic statistics."""

    def __init__(self, rates: RateSampler) -> None:
        self._rates = rates

    def routes(self) -> list[Route]:
        return [
            route("GET", TOPIC + "/stats", self.get, queries=SHOWN),
            route("GET", TOPIC + "/partitioned-stats", self.get_partitioned, queries=(*SHOWN, PER_PARTITION)),
            route("GET", TOPIC + "/partitioned-internalStats", self.get_partitioned_internal),
        ]

    async def get(self, call: Call) -> Response:
        """Return a topic's statistics. `getPreciseBacklog` has no effect, because backlogs are always exact."""
        await call.require_lookup(call.topic_name())
        return json_with_nulls(await self._document(call, await existing_any_topic(call)))

    async def get_partitioned(self, call: Call) -> Response:
        """Return sums over the partitions and, unless `perPartition=false`, the statistics of each partition. Missing
        partitions are omitted.
        """
        name, metadata = await _partitioned(call)
        documents: dict[str, Document] = {}
        async for partition, found in _partitions(call, name, "/stats"):
            documents[str(partition)] = await self._document(call, found) if isinstance(found, TopicBase) else found
        by_name = call.config.aggregate_publisher_stats_by_producer_name
        merging = partitioned_stats(list(documents.values()), merges_publishers_by_name=by_name)
        merged = await in_slices(merging, call.runtime.clock)
        if not documents:
            documents[str(name)] = dict(merged)  # as in Pulsar, if no partition exists
        is_detailed = call.query("perPartition") is None or call.flag("perPartition")
        return json_with_nulls({**merged, "metadata": metadata, "partitions": documents if is_detailed else {}})

    async def get_partitioned_internal(self, call: Call) -> Response:
        name, metadata = await _partitioned(call)
        partitions: dict[str, object] = {}
        async for partition, found in _partitions(call, name, "/internalStats"):
            partitions[str(partition)] = await shown_stats(found) if isinstance(found, TopicBase) else found
        if not partitions:
            raise AdminError(404, "Internal topics have not been generated yet")
        return json_with_nulls({"metadata": metadata, "partitions": partitions})

    async def _document(self, call: Call, topic: TopicBase) -> Document:
        measured, backlog_bytes = await _measure(call, topic)
        await _find_last_publish_time(topic)
        request = StatsRequest(
            measured=measured,
            backlog_bytes=backlog_bytes,
            broker_id=broker_id(call),
            with_publishers=call.config.expose_publisher_stats and not call.flag("excludePublishers"),
            with_consumers=not call.flag("excludeConsumers"),
        )
        return await in_slices(topic_stats(topic, self._rates, request), call.runtime.clock)


async def _partitioned(call: Call) -> tuple[TopicName, Document]:
    name = call.topic_name()
    await call.require_lookup(name)
    namespace_of_topics(call, name.namespace)
    if PARTITION_MARK in name.local_name:
        raise AdminError(412, f"Partitioned Topic Name should not contain '{PARTITION_MARK}'")
    metadata = call.broker.partitioned.get(name)
    if metadata is None:
        raise AdminError(404, f"Partitioned Topic {name} not found")
    shown: Document = {"partitions": metadata.partitions, "deleted": metadata.deleted}
    return name, shown if metadata.properties is None else shown | {"properties": metadata.properties}


async def _partitions(
    call: Call, name: TopicName, behind: str
) -> AsyncIterator[tuple[TopicName, TopicBase | Document]]:
    """Yield the existing partitions, loaded one after the other; for a partition of another broker, that broker's
    response to a call with the path `behind` after the topic.
    """
    for partition in topics_of(call, name):
        if (owner := await other_owner(call, partition)) is None:
            with contextlib.suppress(TopicNotFound):
                yield partition, await call.broker.topics.any(partition, may_create=False)
            continue
        try:
            answer = await call_owner(call, owner, partition, behind=behind)
        except AdminError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
        else:
            yield partition, answer


async def _measure(call: Call, topic: TopicBase) -> tuple[Mapping[SubscriptionBase, Measured], int]:
    if not isinstance(topic, Topic):
        return dict.fromkeys(topic.subscriptions.values(), Measured(0, 0)), 0
    with_size = call.query("subscriptionBacklogSize") is None or call.flag("subscriptionBacklogSize")
    with_time = call.flag("getEarliestTimeInBacklog")
    measured: dict[SubscriptionBase, Measured] = {}
    for subscription in list(topic.subscriptions.values()):
        size_bytes = await _backlog_bytes(subscription) if with_size else NOT_ASKED_FOR
        earliest_ms = await _earliest_publish_ms(subscription) if with_time else 0
        measured[subscription] = Measured(size_bytes, earliest_ms)
    return measured, await _topic_backlog_bytes(topic)


async def _find_last_publish_time(topic: TopicBase) -> None:
    if topic.counters.last_publish_ms or not isinstance(topic, Topic):
        return
    last = topic.ledger.ledgers.last_position
    if not topic.ledger.ledgers.has_entry(last):
        return
    try:
        publish_time_ms = await topic.ledger.publish_time_of(last)
    except StoreError:
        return
    topic.counters.last_publish_ms = topic.counters.last_publish_ms or publish_time_ms


async def _backlog_bytes(subscription: Subscription) -> int:
    """Return the exact backlog size in bytes; an estimate if the store fails."""
    try:
        return (await subscription.cursor.backlog()).size_bytes
    except StoreError:
        cursor = subscription.cursor
        return estimated_bytes_behind(cursor.ledger.ledgers, cursor.mark_delete_position)


async def _topic_backlog_bytes(topic: Topic) -> int:
    slowest = slowest_subscription(topic)
    return estimated_backlog_bytes(topic) if slowest is None else await _backlog_bytes(slowest)


async def _earliest_publish_ms(subscription: Subscription) -> int:
    try:
        return await subscription.cursor.oldest_publish_time() or 0
    except StoreError:
        return 0
