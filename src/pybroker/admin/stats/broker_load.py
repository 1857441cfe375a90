"""Load report of a broker. The leader of a cluster uses the reports to assign, split and unload bundles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pybroker.admin.stats.bundle_load import BundleLoad
from pybroker.cluster.load_balance.load_report import LoadReport, ResourceUsage
from pybroker.cluster.membership.registration import Registration, local_broker_data, own_broker
from pybroker.version import __version__

if TYPE_CHECKING:
    from pybroker.admin.stats.rate_sampler import RateSampler
    from pybroker.admin.stats.resource_usage import Usage
    from pybroker.broker.service import BrokerService

NO_LOAD_MANAGER = "none"
"""Load manager class of a standalone broker."""


def measured_report(rates: RateSampler, loads: Mapping[str, BundleLoad]) -> LoadReport:
    """Return the load report. `loads` has the load of each bundle with loaded topics."""
    resources = rates.resources
    return LoadReport(
        _usage(resources.cpu),
        _usage(resources.memory),
        _usage(resources.direct_memory),
        _usage(resources.bandwidth_in),
        _usage(resources.bandwidth_out),
        {name: load.figures for name, load in loads.items()},
        resources.sampled_wall_ms,
    )


def load_report(broker: BrokerService, rates: RateSampler, loads: Mapping[str, BundleLoad]) -> dict[str, Any]:
    """Return the load report as JSON, for REST and for the registration of a cluster member."""
    config, membership = broker.runtime.config, broker.membership
    own = (
        own_broker(
            broker.presence.broker_id, broker.presence.addresses, NO_LOAD_MANAGER, rates.started_wall_ms, __version__
        )
        if membership is None
        else membership.own_broker
    )
    return local_broker_data(
        Registration(
            own,
            measured_report(rates, loads),
            config.enable_persistent_topics,
            config.enable_non_persistent_topics,
            is_pybroker=True,
        )
    )


def _usage(usage: Usage) -> ResourceUsage:
    return ResourceUsage(usage.usage, usage.limit)
