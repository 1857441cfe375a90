"""The load report: the broker's work and its usage of the machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pybroker.admin.stats.bundle_load import BundleLoad
from pybroker.version import __version__

if TYPE_CHECKING:
    from pybroker.admin.stats.rate_sampler import RateSampler
    from pybroker.admin.stats.resource_usage import Usage
    from pybroker.broker.service import BrokerService

NO_LOAD_MANAGER = "none"


def load_report(broker: BrokerService, rates: RateSampler, loads: Mapping[str, BundleLoad]) -> dict[str, Any]:
    """Return the report. `loads` are those of bundles with loaded topics. Bundles never move, so none was gained or
    lost.
    """
    found, resources = broker.presence.addresses.resolve(None), rates.resources
    urls = {
        "webServiceUrl": found.http_url,
        "webServiceUrlTls": found.http_url_tls,
        "pulsarServiceUrl": found.broker_url,
        "pulsarServiceUrlTls": found.broker_url_tls,
    }
    return {
        **{name: url for name, url in urls.items() if url},
        "persistentTopicsEnabled": broker.runtime.config.enable_persistent_topics,
        "nonPersistentTopicsEnabled": broker.runtime.config.enable_non_persistent_topics,
        "cpu": _usage(resources.cpu),
        "memory": _usage(resources.memory),
        "directMemory": _usage(resources.direct_memory),
        "bandwidthIn": _usage(resources.bandwidth_in),
        "bandwidthOut": _usage(resources.bandwidth_out),
        "msgThroughputIn": sum(load.byte_rate_in for load in loads.values()),
        "msgThroughputOut": sum(load.byte_rate_out for load in loads.values()),
        "msgRateIn": sum(load.message_rate_in for load in loads.values()),
        "msgRateOut": sum(load.message_rate_out for load in loads.values()),
        "lastUpdate": resources.sampled_wall_ms,
        "lastStats": {name: _bundle(load) for name, load in sorted(loads.items())},
        "numTopics": sum(load.topic_count for load in loads.values()),
        "numBundles": len(loads),
        "numConsumers": sum(load.consumer_count for load in loads.values()),
        "numProducers": sum(load.producer_count for load in loads.values()),
        "bundles": sorted(loads),
        "lastBundleGains": [],
        "lastBundleLosses": [],
        "brokerVersionString": __version__,
        "protocols": {},
        "advertisedListeners": {},
        "loadManagerClassName": NO_LOAD_MANAGER,
        "startTimestamp": rates.started_wall_ms,
        "maxResourceUsage": resources.max_percent / 100,
        "loadReportType": "LocalBrokerData",
    }


def _usage(usage: Usage) -> dict[str, float]:
    return {"usage": usage.usage, "limit": usage.limit}


def _bundle(load: BundleLoad) -> dict[str, float]:
    return {
        "msgRateIn": load.message_rate_in,
        "msgThroughputIn": load.byte_rate_in,
        "msgRateOut": load.message_rate_out,
        "msgThroughputOut": load.byte_rate_out,
        "consumerCount": load.consumer_count,
        "producerCount": load.producer_count,
        "topics": load.topic_count,
        "cacheSize": 0,
    }
