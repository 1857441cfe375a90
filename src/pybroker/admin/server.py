"""HTTP server: binds the plain and TLS ports, serves on the broker's event loop, and closes within a deadline."""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING

from starlette.routing import BaseRoute
from uvicorn.config import Config

from pybroker.admin.brokers import (
    absent_features,
    bookie_routes,
    broker_routes,
    cluster_document_routes,
    cluster_routes,
    data_snapshot_routes,
    diagnostics_routes,
    lookup_routes,
    status_routes,
)
from pybroker.admin.brokers.openapi_routes import OpenApiRoutes
from pybroker.admin.brokers.share_routes import ShareRoutes
from pybroker.admin.console.console_login import ConsoleLogin
from pybroker.admin.console.console_routes import ConsoleRoutes
from pybroker.admin.entries import lease_routes, message_routes
from pybroker.admin.entries.entry_routes import EntryRoutes
from pybroker.admin.entries.produce_routes import RestProduceRoutes
from pybroker.admin.explain import explain_routes
from pybroker.admin.http.application import Application
from pybroker.admin.http.protocol import Connections, HttpProtocol, Reader
from pybroker.admin.http.web_service import WebService
from pybroker.admin.inspection import acting_routes, delay_routes, hash_routes, hole_routes, unacked_routes
from pybroker.admin.metrics.broker_stats_routes import BrokerStatsRoutes
from pybroker.admin.metrics.metrics_page import MetricsPage
from pybroker.admin.metrics.metrics_routes import MetricsRoutes
from pybroker.admin.metrics.shared_page import SharedPage, WrittenPage
from pybroker.admin.namespaces import (
    bundle_routes,
    namespace_routes,
    namespace_settings_routes,
    namespace_subscription_routes,
    resource_group_routes,
    resource_quota_routes,
    tenant_routes,
)
from pybroker.admin.namespaces.bundle_split_routes import BundleSplitRoutes
from pybroker.admin.policies import namespace_offload, namespace_policies, policy_table_routes, topic_policies
from pybroker.admin.stats.rate_sampler import RateSampler
from pybroker.admin.stats.topic_stats_routes import TopicStatsRoutes
from pybroker.admin.topics import (
    cursor_routes,
    partitioned_topic_routes,
    schema_routes,
    subscription_routes,
    topic_operation_routes,
    topic_permission_routes,
    topic_routes,
)
from pybroker.admin.transactions import buffer_routes, coordinator_routes, pending_ack_routes, sink_routes
from pybroker.auth.server_tls import server_context
from pybroker.errors import BrokerError, CannotListen, StoreError
from pybroker.runtime import logs
from pybroker.runtime.proxied_port import ProxiedPort, WaitingConnections, accepting_port, parse_networks
from pybroker.runtime.tasks import TaskOwner

if TYPE_CHECKING:
    from pybroker.admin.metrics.exposition_text import Number
    from pybroker.broker.service import BrokerService
    from pybroker.runtime.clock import Clock
    from pybroker.runtime.network import Port

TLS_HANDSHAKE_TIMEOUT_S = 10.0
CLOSE_DEADLINE_S = 5.0
LOOKS_PER_TIMEOUT = 4


# The first matching route wins, so fixed paths precede paths with a parameter at the same position.
NOUNS = (
    status_routes,
    absent_features,
    bookie_routes,
    cluster_routes,
    cluster_document_routes,
    broker_routes,
    data_snapshot_routes,
    diagnostics_routes,
    tenant_routes,
    namespace_policies,
    namespace_offload,
    namespace_settings_routes,
    namespace_subscription_routes,
    policy_table_routes,
    topic_permission_routes,
    namespace_routes,
    bundle_routes,
    resource_group_routes,
    resource_quota_routes,
    schema_routes,
    lease_routes,
    topic_policies,
    topic_operation_routes,
    message_routes,
    explain_routes,
    cursor_routes,
    unacked_routes,
    hash_routes,
    acting_routes,
    delay_routes,
    hole_routes,
    subscription_routes,
    partitioned_topic_routes,
    topic_routes,
    lookup_routes,
    coordinator_routes,
    buffer_routes,
    pending_ack_routes,
    sink_routes,
)


class HttpServer:
    """HTTP on `webServicePort` and HTTPS on `webServicePortTls`, on the event loop that called `start`."""

    def __init__(
        self,
        broker: BrokerService,
        tls_context: ssl.SSLContext | None,
        clock: Clock,
        services: Sequence[WebService] = (),
    ) -> None:
        """`tls_context` may be shared with other listeners, so that all of them use the same renewed certificates.
        `services`: further services on the same ports, such as WebSocket.
        """
        self._services = services
        self._broker = broker
        self._runtime = broker.runtime
        self._config = broker.runtime.config
        self.rates = RateSampler(broker, clock)
        broker.consumer_rates = self.rates.consumer
        self._tasks = TaskOwner("http")
        config = broker.runtime.config
        self._figures_page = MetricsPage(broker, self.rates, self._figures)
        self._page = SharedPage(self._figures_page, self._tasks, broker.runtime)
        metrics, stats = MetricsRoutes(self._page, config, broker.runtime.memory), TopicStatsRoutes(self.rates)
        nouns = [route for noun in NOUNS for route in noun.routes()]
        broker_stats = BrokerStatsRoutes(self.rates)
        self.entries = EntryRoutes(broker)
        self.console = ConsoleRoutes(broker, self.rates)
        login = ConsoleLogin(broker)
        shares = ShareRoutes(broker, self.console.sampler)
        own = [
            *metrics.routes(),
            *stats.routes(),
            *broker_stats.routes(),
            *RestProduceRoutes().routes(),
            *BundleSplitRoutes(self.rates).routes(),
            *shares.routes(),
        ]
        further = [route for service in services for route in service.routes()]
        routes = [*own, *self.entries.routes(), *login.routes(), *self.console.routes(), *further, *nouns]
        self.routes: Sequence[BaseRoute] = [*OpenApiRoutes(routes).routes(), *routes]
        self._application = Application(broker, self.routes, login)
        self.limits = self._application.limits
        self._tls_context = tls_context
        self._plain_port: Port | ProxiedPort | None = None
        self._tls_port: Port | ProxiedPort | None = None
        self._connections: Connections | None = None
        self._waiting = WaitingConnections(config.max_connections_before_connect, self._room)

    @property
    def port(self) -> int | None:
        return None if self._plain_port is None else self._plain_port.number

    @property
    def port_tls(self) -> int | None:
        return None if self._tls_port is None else self._tls_port.number

    def _figures(self) -> dict[str, Number]:
        limits, connections = self.limits, self._connections
        http = {
            "connections": 0 if connections is None else len(connections.connections),
            "refused_connections": 0 if connections is None else connections.refused,
            "waiting_requests": limits.waiting,
            "request_bytes": limits.memory.requests.used_bytes,
            "response_bytes": limits.memory.answers.used_bytes,
            "viewed_bytes": limits.memory.views.used_bytes,
            **self.entries.reads.figures(),
            "read_leases": len(self._broker.broker_context.read_leases),
        }
        figures: dict[str, Number] = {f"http_{name}": value for name, value in http.items()}
        for service in self._services:
            figures.update(service.figures())
        return figures

    @property
    def metrics_page(self) -> WrittenPage | None:
        return self._page.kept

    def bind(self) -> None:
        """Bind the ports without serving, so that the port numbers are known before `start`. Raises CannotListen with
        all ports that could not be bound.
        """
        address, config = self._config.bind_address, self._config
        problems: list[str] = []
        if config.web_service_port is not None:
            try:
                self._plain_port = self._bind_one(config.web_service_port, is_tls=False)
            except OSError as error:
                problems += CannotListen.on(address, config.web_service_port, "webServicePort", error).problems
        if config.web_service_port_tls is not None:
            try:
                self._tls_port = self._bind_one(config.web_service_port_tls, is_tls=True)
            except OSError as error:
                problems += CannotListen.on(address, config.web_service_port_tls, "webServicePortTls", error).problems
        if problems:
            self._close_ports()
            raise CannotListen(*problems)

    async def start(self) -> None:
        """Start serving. Binds the ports if `bind` was not called."""
        assert self._connections is None, "started twice"
        if self._plain_port is None and self._tls_port is None:
            self.bind()
        config = self._config
        self._connections = Connections(
            self._broker.descriptors.max_http,
            config.max_http_server_connections_per_ip,
            config.http_header_timeout_ms / 1000,
        )
        if self._plain_port is not None:
            await self._serve(self._plain_port, None)
        if self._tls_port is not None:
            await self._serve(self._tls_port, self._tls_context or server_context(self._config))
        self._tasks.start(self._close_stalled(self._connections), "stalled")
        self._tasks.start(
            self.rates.run(config.stats_update_initial_delay_in_secs, config.stats_update_frequency_in_secs), "rates"
        )
        if config.health_check_metrics_update_time_in_seconds > 0:
            self._tasks.start(
                measure_health(self._broker, config.health_check_metrics_update_time_in_seconds), "health metric"
            )
        if config.otel_exporter_otlp_endpoint:
            from pybroker.admin.metrics.otlp_exporter import OtlpExporter  # noqa: PLC0415  (only for its users)

            self._tasks.start(
                OtlpExporter(self._figures_page, self._runtime, self._broker.presence).run(), "OpenTelemetry"
            )
        logs.info("http.started", port=self.port, port_tls=self.port_tls)

    async def close_services(self, deadline_s: float = CLOSE_DEADLINE_S) -> None:
        """Close the services of the web port (`WebService`). Call this while the broker still serves the binary
        protocol, which the sessions of these services use.
        """
        for service in self._services:
            await service.close(deadline_s)

    async def close(self, deadline_s: float = CLOSE_DEADLINE_S) -> None:
        """Refuse new connections, wait for running requests until the deadline, then close all connections.
        Idempotent.
        """
        await self._tasks.close()
        await self.console.close()
        ports = self._plain_port, self._tls_port
        self._close_ports()
        for port in ports:
            if isinstance(port, ProxiedPort):
                await port.finish()
        await self.close_services(deadline_s)
        connections, self._connections = self._connections, None
        if connections is None:
            return
        connections.is_closing = True  # a TLS handshake may still become a connection
        for connection in list(connections.connections):
            if not connection.transport.is_closing():
                connection.shutdown()
        try:
            async with asyncio.timeout(deadline_s):
                await connections.all_closed.wait()
        except TimeoutError:
            logs.warning("http.requests_aborted", connections=len(connections.connections), deadline_s=deadline_s)
        tasks = list(connections.tasks)
        for task in tasks:
            task.cancel()
        for connection in list(connections.connections):
            connection.transport.abort()
        if tasks:
            await asyncio.wait(tasks)
        await connections.all_closed.wait()

    async def _close_stalled(self, connections: Connections) -> None:
        longest_s = self._config.http_write_timeout_ms / 1000
        while True:
            await asyncio.sleep(longest_s / LOOKS_PER_TIMEOUT)
            connections.close_stalled(self._runtime.peer_clock.monotonic_ms() / 1000, longest_s)

    async def _serve(self, bound: Port | ProxiedPort, tls_context: ssl.SSLContext | None) -> None:
        connections = self._connections
        assert connections is not None
        config = Config(
            self._application,
            http=HttpProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            proxy_headers=self._config.web_service_trust_x_forwarded_for,
            forwarded_allow_ips=_trusted_proxies(self._config.ha_proxy_protocol_trusted_addresses),
            server_header=False,
            log_config=None,
            timeout_keep_alive=self._config.http_idle_timeout_ms / 1000,  # type: ignore[arg-type]
            h11_max_incomplete_event_size=self._config.http_max_request_header_size,
        )
        config.load()
        await bound.serve(functools.partial(Reader, config, connections), tls_context, TLS_HANDSHAKE_TIMEOUT_S)

    def _bind_one(self, number: int, *, is_tls: bool) -> Port | ProxiedPort:
        config = self._config
        bound = self._runtime.network.bind(config.bind_address, number, config.http_server_accept_queue_size)
        reads_header = config.web_service_ha_proxy_protocol_enabled
        return accepting_port(bound, self._runtime, self._waiting, reads_header=reads_header, is_tls=is_tls)

    def _room(self) -> int:
        """Return how many further connections the file descriptors allow."""
        used = 0 if self._connections is None else len(self._connections.connections)
        return self._broker.descriptors.max_http - used

    def _close_ports(self) -> None:
        for bound in (self._plain_port, self._tls_port):
            if bound is not None:
                bound.close()
        self._plain_port = self._tls_port = None


def _trusted_proxies(addresses: Sequence[str]) -> list[str] | str:
    """Return the addresses whose header X-Forwarded-For uvicorn accepts. A port at `::` reports IPv4 clients by mapped
    addresses, which uvicorn does not convert.
    """
    networks = parse_networks(addresses)
    mapped = [f"::ffff:{each.network_address}/{96 + each.prefixlen}" for each in networks if each.version == 4]
    return [*map(str, networks), *mapped] or "*"


async def measure_health(broker: BrokerService, interval_s: float) -> None:
    while True:
        try:
            await broker.health_check()
            broker.runtime.stats.is_healthy = True
        except (BrokerError, StoreError) as error:
            broker.runtime.stats.is_healthy = False
            logs.warning("health.failed", error=str(error))
        await asyncio.sleep(interval_s)
