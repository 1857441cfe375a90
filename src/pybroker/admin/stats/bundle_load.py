"""Load of each bundle with loaded topics, for load reports and metrics."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from pybroker.cluster.bundles import bundles_of, find_bundle
from pybroker.cluster.load_balance.load_report import BundleFigures

if TYPE_CHECKING:
    from pybroker.admin.stats.rate_sampler import RateSampler
    from pybroker.broker.service import BrokerService
    from pybroker.broker.topic.topic_base import TopicBase


class BundleLoad:
    """Sums over the loaded topics of one bundle."""

    def __init__(self) -> None:
        self.topic_count = 0
        self.producer_count = 0
        self.consumer_count = 0
        self.message_rate_in = 0.0
        self.message_rate_out = 0.0
        self.byte_rate_in = 0.0
        self.byte_rate_out = 0.0

    def add(self, topic: TopicBase, rates: RateSampler) -> None:
        incoming = rates.topic(topic)
        self.topic_count += 1
        self.producer_count += len(topic.producers)
        self.message_rate_in += incoming.messages_in.per_second
        self.byte_rate_in += incoming.bytes_in.per_second
        for subscription in topic.subscriptions.values():
            outgoing = rates.subscription(subscription)
            self.consumer_count += len(subscription.consumers)
            self.message_rate_out += outgoing.messages_out.per_second
            self.byte_rate_out += outgoing.bytes_out.per_second

    @property
    def figures(self) -> BundleFigures:
        return BundleFigures(
            self.message_rate_in,
            self.byte_rate_in,
            self.message_rate_out,
            self.byte_rate_out,
            self.consumer_count,
            self.producer_count,
            self.topic_count,
        )


def bundle_of(broker: BrokerService, topic: TopicBase) -> str:
    """Return the range of the topic's bundle; the full range for a namespace that is being deleted."""
    policies = broker.resources.namespace(topic.name.namespace)
    if policies is None:
        return str(bundles_of(("0x00000000", "0xffffffff"))[0])
    return str(find_bundle(topic.name, policies.bundles.boundaries))


def bundle_loads(
    broker: BrokerService, rates: RateSampler, loads: dict[str, BundleLoad]
) -> Generator[None, None, None]:
    """Add the load of each bundle to `loads`, by `tenant/namespace/bundle`. Yields after each topic."""
    for topic in broker.loaded.all():
        key = f"{topic.name.namespace}/{bundle_of(broker, topic)}"
        loads.setdefault(key, BundleLoad()).add(topic, rates)
        yield
