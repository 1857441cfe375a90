"""Load that a cluster member registers in the metadata store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.admin.stats.broker_load import measured_report
from pybroker.admin.stats.bundle_load import BundleLoad, bundle_loads
from pybroker.cluster.load_balance.load_report import LoadReport
from pybroker.runtime.time_slices import in_slices

if TYPE_CHECKING:
    from pybroker.admin.stats.rate_sampler import RateSampler
    from pybroker.broker.service import BrokerService


class MeasuredLoad:
    """Source of the registered load, computed from sampled rates."""

    def __init__(self, broker: BrokerService, rates: RateSampler) -> None:
        self._broker = broker
        self._rates = rates

    def revision(self) -> object:
        broker = self._broker
        topic_count = len(broker.loaded.persistent) + len(broker.loaded.non_persistent)
        return self._rates.resources.sampled_wall_ms, broker.runtime.stats.topic_loads, topic_count

    async def measure(self) -> LoadReport:
        clock, resources = self._broker.runtime.clock, self._rates.resources
        if not resources.sampled_wall_ms:
            resources.sample(clock.wall_ms(), clock.monotonic_ms())
        loads: dict[str, BundleLoad] = {}
        await in_slices(bundle_loads(self._broker, self._rates, loads), clock)
        return measured_report(self._rates, loads)
