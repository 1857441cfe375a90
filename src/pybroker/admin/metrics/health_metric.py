"""Measures now and then whether the broker is well, for the metric `pulsar_health`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pybroker.errors import BrokerError, StoreError
from pybroker.runtime import logs

if TYPE_CHECKING:
    from pybroker.broker.service import BrokerService


async def measure_health(broker: BrokerService, interval_s: float) -> None:
    """Run the health check for ever and keep its result in the broker's counters."""
    while True:
        try:
            await broker.health_check()
            broker.runtime.stats.is_healthy = True
        except (BrokerError, StoreError) as error:
            broker.runtime.stats.is_healthy = False
            logs.warning("health.failed", error=str(error))
        await asyncio.sleep(interval_s)
