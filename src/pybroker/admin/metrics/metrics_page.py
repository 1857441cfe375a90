"""Sections of the metrics page in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pybroker.admin.metrics.broker_metrics import BrokerLines
from pybroker.admin.metrics.bundle_metrics import bundle_lines
from pybroker.admin.metrics.exposition_text import Number, Samples
from pybroker.admin.metrics.figures import broker_host
from pybroker.admin.metrics.ledger_metrics import ledger_lines
from pybroker.admin.metrics.schema_metrics import schema_lines
from pybroker.admin.metrics.topic_metrics import Reading
from pybroker.admin.metrics.transaction_metrics import transaction_lines
from pybroker.admin.slices import sliced

if TYPE_CHECKING:
    from pybroker.admin.stats.rate_sampler import RateSampler
    from pybroker.broker.service import BrokerService


class MetricsPage:
    """Writer of the page."""

    def __init__(self, broker: BrokerService, rates: RateSampler, http: Callable[[], dict[str, Number]] = dict) -> None:
        self._http = http
        self._broker = broker
        self._runtime = broker.runtime
        self._rates = rates
        self._samples = Samples(broker.runtime.config.cluster_name)
        self._broker_lines = BrokerLines(broker, rates, self._samples)

    def slices(self) -> Iterator[str]:
        """Yield the text of the page in parts, one per time slice of the event loop. Some parts are empty."""
        return sliced(self._pieces(), self._runtime.clock)

    def _pieces(self) -> Iterator[str]:
        config = self._runtime.config
        reading = Reading(self._broker, self._rates, self._samples)
        for _ in reading.read():
            yield ""
        yield from self._broker_lines.lines(reading)
        for name, value in self._http().items():
            yield from self._samples.gauge(f"pybroker_{name}", value)
        yield from schema_lines(self._samples, self._broker.broker_context.schemas.counters)
        yield from transaction_lines(self._samples, self._broker.transactions.running())
        yield from ledger_lines(self._samples, reading.ledgers, config.stats_update_frequency_in_secs)
        if config.expose_bundles_metrics_in_prometheus:
            yield from bundle_lines(self._samples, self._broker, self._rates, broker_host(self._broker))
        yield from reading.lines()
