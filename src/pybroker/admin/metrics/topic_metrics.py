"""Metrics of all topics for one scrape of the metrics page: one row per topic, and sums over namespaces and the broker.

Topics that are unloaded during the scrape are still written; topics that are loaded meanwhile appear in the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import add
from typing import TYPE_CHECKING

from pybroker.admin.metrics import topic_and_subscription_metrics as metrics
from pybroker.admin.metrics.compaction_metrics import COMPACTION_NAMES, compaction_values
from pybroker.admin.metrics.exposition_text import Number, Samples, Table, escape, is_free_label
from pybroker.admin.metrics.ledger_metrics import CURSOR_NAMES, LedgerSums, cursor_labels, cursor_values
from pybroker.admin.metrics.transaction_metrics import BUFFER_NAMES, buffer_values
from pybroker.broker.snapshots.subscription_snapshot import consumer_snapshot, subscription_snapshot
from pybroker.broker.snapshots.topic_snapshot import topic_snapshot
from pybroker.broker.topic.backlog_quota import estimated_backlog_bytes
from pybroker.model.system_topics import is_system_topic

if TYPE_CHECKING:
    from pybroker.admin.stats.rate_sampler import RateSampler
    from pybroker.broker.delivery.subscription_base import SubscriptionBase
    from pybroker.broker.service import BrokerService
    from pybroker.broker.snapshots.subscription_snapshot import SubscriptionSnapshot
    from pybroker.broker.topic.topic_base import TopicBase
    from pybroker.config import BrokerConfig
    from pybroker.model.names import NamespaceName

EVICTION_TYPES = ("size", "time")


class NamespaceSums:
    """Sums over the topics of one namespace, or of all namespaces."""

    def __init__(self) -> None:
        self.topic_count = 0
        self.summed = metrics.SummedValues(*[0] * len(metrics.SummedValues._fields))
        self.delivery = metrics.DeliverySums(*[0] * len(metrics.DeliverySums._fields))
        self.buckets: Sequence[Number] = [0] * len(metrics.BUCKET_NAMES)
        self.evictions = (0, 0)

    def add(self, topic: TopicBase, summed: metrics.SummedValues) -> None:
        self.topic_count += 1
        self.summed = metrics.SummedValues(*map(add, self.summed, summed))
        size_evictions, age_evictions = self.evictions
        self.evictions = (
            size_evictions + topic.counters.size_evictions,
            age_evictions + topic.counters.age_evictions,
        )

    def add_rows(self, buckets: Sequence[Number], delivery: metrics.DeliverySums) -> None:
        """Add the histogram and delivery values of one topic. Call this only if the page has no rows for topics
        (`exposeTopicLevelMetricsInPrometheus=false`); the namespace's row then contains these sums.
        """
        if buckets is not metrics.NO_BUCKETS:
            self.buckets = list(map(add, self.buckets, buckets))
        self.delivery = metrics.DeliverySums(*map(add, self.delivery, delivery))


class Reading:
    """Values of all topics for one scrape. The caller must call `read` before the values are written."""

    def __init__(self, broker: BrokerService, rates: RateSampler, samples: Samples) -> None:
        self._broker = broker
        self._runtime = broker.runtime
        self._rates = rates
        self._samples = samples
        self._config: BrokerConfig = broker.runtime.config
        self._has_topics = self._config.expose_topic_level_metrics_in_prometheus
        of_all = (*metrics.SummedValues._fields, *metrics.BUCKET_NAMES)
        more = metrics.SingleValues._fields if self._has_topics else metrics.DeliverySums._fields
        self._topics = Table((*of_all, *more))  # or namespaces
        self._evictions = Table((metrics.EVICTIONS_NAME,))
        self._subscriptions = Table(metrics.SubscriptionValues._fields)
        self._throttled = Table(metrics.THROTTLE_NAMES)
        self._out = Table(metrics.OutValues._fields)
        self._subscription_backlogs = Table(("pybroker_subscription_backlog_bytes",))
        self._consumers = Table(metrics.ConsumerValues._fields)
        self._producers = Table(metrics.ProducerValues._fields)
        self._cursors = Table(CURSOR_NAMES)
        self._compactions = Table(COMPACTION_NAMES)
        self._buffers = Table(BUFFER_NAMES)
        self.namespaces: dict[str, NamespaceSums] = {}
        self.ledgers: dict[str, LedgerSums] = {}  # by namespace and domain
        self._begins: dict[NamespaceName, str] = {}
        # Key: whether the topic is a system topic.
        self.bytes_in = {True: 0, False: 0}
        self.bytes_out = {True: 0, False: 0}

    def read(self) -> Iterator[None]:
        has_cursors = self._config.expose_managed_cursor_metrics_in_prometheus
        for topic in self._broker.loaded.all():
            labels = self._topic_labels(topic)
            delivered: list[metrics.SubscriptionValues] = []
            for subscription in list(topic.subscriptions.values()):
                snapshot = subscription_snapshot(subscription)
                delivered.append(metrics.subscription_values(snapshot, self._rates.subscription(subscription)))
                if has_cursors and snapshot.cursor is not None and snapshot.is_durable:
                    self._cursors.add(
                        cursor_labels(self._samples, topic.name, snapshot.cursor), cursor_values(snapshot.cursor)
                    )
                if self._has_topics:
                    yield from self._subscription_rows(labels, subscription, snapshot, delivered[-1])
                yield
            if self._has_topics:
                yield from self._producer_rows(labels, topic)
            self._add(labels, topic, delivered)
            yield

    def _topic_labels(self, topic: TopicBase) -> str:
        name = topic.name
        begin = self._begins.get(name.namespace)
        if begin is None:
            begin = self._begins[name.namespace] = self._samples.labels(namespace=str(name.namespace))[:-1]
        own = self._property_labels(topic) if self._config.expose_custom_topic_metric_labels_enabled else ""
        if not self._config.split_topic_and_partition_label_in_prometheus:
            return f'{begin},topic="{escape(str(name))}"{own}'
        return f'{begin},topic="{escape(str(name.partitioned_name))}",partition="{name.partition_index}"{own}'

    def _property_labels(self, topic: TopicBase) -> str:
        """Return labels for the topic properties that the namespace's policy allows. A partition has the properties of
        its partitioned topic.
        """
        namespace = self._broker.resources.namespace(topic.name.namespace)
        allowed = namespace.allowed_topic_property_keys_for_metrics if namespace is not None else None
        if not allowed:
            return ""
        partitioned = self._broker.partitioned.get(topic.name.partitioned_name)
        properties: Mapping[str, str] = (
            topic_snapshot(topic).properties if partitioned is None else partitioned.properties or {}
        )
        return "".join(
            f',{key}="{escape(properties[key])}"'
            for key in sorted(set(allowed))
            if key in properties and is_free_label(key)
        )

    def _subscription_rows(
        self,
        topic_labels: str,
        subscription: SubscriptionBase,
        snapshot: SubscriptionSnapshot,
        values: metrics.SubscriptionValues,
    ) -> Iterator[None]:
        labels, counters = f'{topic_labels},subscription="{escape(subscription.name)}"', snapshot.counters
        self._subscriptions.add(labels + "}", values)
        self._out.add(labels + "}", metrics.out_values(counters))
        for reason in metrics.THROTTLE_REASONS:
            row_labels = f'{labels},reason="{reason}"}}'
            self._throttled.add(row_labels, metrics.throttled_events(counters, reason))
        if self._config.expose_subscription_backlog_size_in_prometheus:
            self._subscription_backlogs.add(labels + "}", (snapshot.estimated_backlog_bytes(),))
        if self._config.expose_consumer_level_metrics_in_prometheus:
            for consumer in list(subscription.consumers):
                own = f'{labels},consumer_name="{escape(consumer.name)}",consumer_id="{consumer.consumer_id}"}}'
                values_of_consumer = metrics.consumer_values(
                    consumer_snapshot(consumer), self._rates.consumer(consumer)
                )
                self._consumers.add(own, values_of_consumer)
                self._out.add(own, metrics.out_values(consumer.counters))
                yield

    def _producer_rows(self, topic_labels: str, topic: TopicBase) -> Iterator[None]:
        if not self._config.expose_producer_level_metrics_in_prometheus:
            return
        for producer in list(topic.producers.values()):
            own = f',producer_name="{escape(producer.name)}",producer_id="{producer.producer_id}"}}'
            self._producers.add(topic_labels + own, metrics.producer_values(self._rates.producer(producer)))
            yield

    def _add(self, labels: str, topic: TopicBase, delivered: list[metrics.SubscriptionValues]) -> None:
        rates, namespace = self._rates.topic(topic), str(topic.name.namespace)
        snapshot = topic_snapshot(topic)
        counters = snapshot.counters
        summed = metrics.summed_values(snapshot, estimated_backlog_bytes(topic), rates, delivered)
        buckets = metrics.bucket_values(rates)
        of_namespace = self.namespaces.get(namespace)
        if of_namespace is None:
            of_namespace = self.namespaces[namespace] = NamespaceSums()
        of_namespace.add(topic, summed)
        if self._has_topics:
            self._topics.add(labels + "}", (*summed, *buckets, *metrics.single_values(snapshot, rates)))
            if snapshot.ledger is not None and snapshot.compaction is not None and snapshot.compaction.has_run:
                self._compactions.add(labels + "}", compaction_values(snapshot.compaction, snapshot.ledger.compacted))
            if snapshot.transactions is not None:
                self._buffers.add(labels + "}", buffer_values(snapshot.transactions))
            self._add_evictions(labels, (counters.size_evictions, counters.age_evictions))
        else:
            of_namespace.add_rows(buckets, metrics.delivery_sums(topic.subscriptions.values(), delivered))
        if self._config.expose_managed_ledger_metrics_in_prometheus and snapshot.ledger is not None:
            key = f"{namespace}/{topic.name.domain}"
            if key not in self.ledgers:
                self.ledgers[key] = LedgerSums()
            self.ledgers[key].add(snapshot.ledger, rates, summed.pulsar_msg_backlog)
        is_system = is_system_topic(topic.name)
        self.bytes_in[is_system] += counters.bytes_in
        delivered_bytes = sum([each.counters.bytes_out for each in topic.subscriptions.values()])
        self.bytes_out[is_system] += counters.bytes_out_of_removed + delivered_bytes

    def _add_evictions(self, labels: str, counts: tuple[int, int]) -> None:
        for kind, count in zip(EVICTION_TYPES, counts, strict=True):
            self._evictions.add(f'{labels},quota_type="{kind}"}}', (count,))

    def lines(self) -> Iterator[str]:
        counts: dict[str, Number] = {name: sums.topic_count for name, sums in self.namespaces.items()}
        if counts:
            yield from self._samples.gauges("pulsar_topics_count", "namespace", counts)
        if not self._has_topics:
            for name, sums in self.namespaces.items():
                labels = self._samples.labels(namespace=name)
                self._topics.add(labels, (*sums.summed, *sums.buckets, *sums.delivery))
                self._add_evictions(labels[:-1], sums.evictions)
        for table in (
            self._topics,
            self._evictions,
            self._compactions,
            self._buffers,
            self._subscriptions,
            self._throttled,
            self._out,
            self._subscription_backlogs,
            self._consumers,
            self._producers,
            self._cursors,
        ):
            yield from table.lines()
