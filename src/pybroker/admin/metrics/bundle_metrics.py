"""Metrics of namespace bundles, if `exposeBundlesMetricsInPrometheus` is true."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pybroker.admin.metrics.exposition_text import Number, Samples, number_text, type_line
from pybroker.admin.stats.bundle_load import BundleLoad, bundle_loads

if TYPE_CHECKING:
    from pybroker.admin.stats.rate_sampler import RateSampler
    from pybroker.broker.service import BrokerService


def bundle_lines(samples: Samples, broker: BrokerService, rates: RateSampler, host: str) -> Iterator[str]:
    """Yield the metric lines, and "" after each examined topic, so that the caller can yield to the event loop. `host`
    is the value of the label `broker`.
    """
    loads: dict[str, BundleLoad] = {}
    for _ in bundle_loads(broker, rates, loads):
        yield ""
    figures: dict[str, dict[str, Number]] = {
        "pulsar_bundle_msg_rate_in": {name: load.message_rate_in for name, load in loads.items()},
        "pulsar_bundle_msg_rate_out": {name: load.message_rate_out for name, load in loads.items()},
        "pulsar_bundle_msg_throughput_in": {name: load.byte_rate_in for name, load in loads.items()},
        "pulsar_bundle_msg_throughput_out": {name: load.byte_rate_out for name, load in loads.items()},
        "pulsar_bundle_topics_count": {name: load.topic_count for name, load in loads.items()},
        "pulsar_bundle_consumer_count": {name: load.consumer_count for name, load in loads.items()},
        "pulsar_bundle_producer_count": {name: load.producer_count for name, load in loads.items()},
    }
    for name, values in figures.items():
        yield type_line(name)
        for bundle, value in values.items():
            labels = samples.labels(broker=host, bundle=bundle, metric="bundle")
            yield f"{name}{labels} {number_text(value)}\n"
