"""Export of the metrics page to an OpenTelemetry collector (`otelExporterOtlpEndpoint`).

Metrics that cannot be sent are dropped, because the next export replaces them.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import urllib.request
from http.client import HTTPException
from typing import TYPE_CHECKING

from pybroker.admin.metrics.otlp_document import documents
from pybroker.memory.broker_memory import Holding
from pybroker.runtime import logs
from pybroker.version import __version__

if TYPE_CHECKING:
    from pybroker.admin.metrics.metrics_page import MetricsPage
    from pybroker.broker.context.presence import Presence
    from pybroker.runtime.runtime import Runtime

TIMEOUT_S = 5
"""Timeout of a request. The stop of the broker waits for a running request."""
NS_PER_MS = 1_000_000


class OtlpExporter:
    """Periodic exporter of all metrics."""

    def __init__(self, page: MetricsPage, runtime: Runtime, presence: Presence) -> None:
        self._page = page
        self._presence = presence
        self._runtime = runtime
        self._url = runtime.config.otel_exporter_otlp_endpoint.rstrip("/") + "/v1/metrics"
        self._interval_s = runtime.config.otel_export_interval_seconds
        self._has_failed = False

    async def run(self) -> None:
        """Export every otelExportIntervalSeconds until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self.send()

    async def send(self) -> None:
        """Export all metrics now. Of consecutive failures, only the first is logged."""
        room = Holding(self._runtime.memory, self._runtime.memory.answers)
        try:
            texts = []
            size = 0
            for piece in self._page.slices():
                texts.append(piece)
                size += len(piece)
                room.count(size)
                await asyncio.sleep(0)
            await asyncio.to_thread(self._convert_and_post, "".join(texts), self._runtime.clock.wall_ms() * NS_PER_MS)
        except (OSError, HTTPException) as error:
            if not self._has_failed:
                logs.warning("otlp.failed", url=self._url, reason=str(error))
            self._has_failed = True
            return
        finally:
            room.close()
        if self._has_failed:
            logs.info("otlp.restored", url=self._url)
        self._has_failed = False

    def _convert_and_post(self, page: str, now_ns: int) -> None:
        instance = self._presence.broker_id
        resource = {"service.name": "pybroker", "service.version": __version__, "service.instance.id": instance}
        for document in documents(page, resource, __version__, now_ns):
            request = urllib.request.Request(
                self._url,
                gzip.compress(json.dumps(document).encode(), compresslevel=1),
                {"Content-Type": "application/json", "Content-Encoding": "gzip"},
            )
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                response.read()
