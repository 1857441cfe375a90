"""The page as a whole: what stands on it, in which order, cut into slices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pybroker.admin.metrics.broker import BrokerLines
from pybroker.admin.metrics.bundles import bundle_lines
from pybroker.admin.metrics.figures import broker_host
from pybroker.admin.metrics.ledgers import ledger_lines
from pybroker.admin.metrics.reading import Reading
from pybroker.admin.metrics.schemas import schema_lines
from pybroker.admin.metrics.text import Number, Samples
from pybroker.admin.metrics.transactions import transaction_lines
from pybroker.admin.slices import sliced

if TYPE_CHECKING:
    from pybroker.admin.stats.rate_sampler import RateSampler
    from pybroker.broker.service import BrokerService


class MetricsPage:
    """Writes the page, anew for each scrape."""

    def __init__(self, broker: BrokerService, rates: RateSampler, http: Callable[[], dict[str, Number]] = dict) -> None:
        """`http` tells the figures of the HTTP server."""
        self._http = http
        self._broker = broker
        self._surroundings = broker.surroundings
        self._rates = rates
        self._samples = Samples(broker.surroundings.config.cluster_name)
        self._broker_lines = BrokerLines(broker, rates, self._samples)

    def slices(self) -> Iterator[str]:
        """The page in pieces that hold the loop no longer than a slice does; some are empty."""
        return sliced(self._pieces(), self._surroundings.clock)

    def _pieces(self) -> Iterator[str]:
        config = self._surroundings.config
        reading = Reading(self._broker, self._rates, self._samples)
        for _ in reading.read():
            yield ""
        yield from self._broker_lines.lines(reading)
        for name, value in self._http().items():
            yield from self._samples.gauge(f"pybroker_http_{name}", value)
        yield from schema_lines(self._samples, self._broker.commons.schemas.counters)
        yield from transaction_lines(self._samples, self._broker.transactions.running())
        yield from ledger_lines(self._samples, reading.ledgers, config.stats_update_frequency_in_secs)
        if config.expose_bundles_metrics_in_prometheus:
            yield from bundle_lines(self._samples, self._broker, self._rates, broker_host(self._broker))
        yield from reading.lines()
