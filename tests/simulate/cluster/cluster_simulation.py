"""Several whole brokers on one seed: their hosts, one ZooKeeper, bookies, and what separates them from each other.

    async def scenario(cluster):
        await cluster.start_all()
        wire = await cluster.connect("b0")
        cluster.freeze("b0")
        await cluster.sleep(5)
        cluster.thaw("b0")

    cluster = ClusterSimulation.run(7, scenario, {"brokers": 3})      # cluster.history, cluster.digest, cluster.violations

Operation: a host has its own network, and at most one broker process. All brokers are real and run on the common loop; each has its
own sessions with the simulated ZooKeeper and its own connections to the simulated bookies. `violations` are what the simulation
itself sees: two brokers that serve one bundle, and messages of a broker that is not the owner.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.simulate.cluster.bookies import SimulatedBookies
from tests.simulate.cluster.cluster_life import ClusterLife, Host
from tests.simulate.cluster.host_network import HostNetwork
from tests.simulate.coverage import http_name
from tests.simulate.leftovers import after_stop
from tests.simulate.life import PORT, BrokerLife, Gone
from tests.simulate.loop import Process
from tests.simulate.simulated_run import SimulatedRun
from tests.simulate.wire import Wire
from tests.simulate.zookeeper_model import ZooKeeperModel
from tests.support.memory_network import MemoryPort

from pybroker.cluster.ownership.namespace_bundle import OWNERS, NamespaceBundle, bundle_of_path
from pybroker.config import BrokerConfig
from pybroker.errors import StoreError
from pybroker.model.names import TopicName
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.zookeeper.operations import NodeEvent, NodeEventType

CLUSTER = "c1"
SESSION_MS = 3000
FIXED = {
    "cluster_name": CLUSTER,
    "ledger_store": "bookkeeper",
    "broker_memory_limit_mb": 512,
    "managed_ledger_cache_size_mb": 1,
    "metrics_page_interval_ms": 0,
    "metadata_store_session_timeout_millis": SESSION_MS,
    "metadata_store_operation_timeout_seconds": 5,
    "bookkeeper_client_timeout_in_seconds": 2,
    "transaction_coordinator_enabled": False,
    "system_topic_enabled": False,
    "topic_level_policies_enabled": False,
}
OWN_SETTINGS = ("brokers", "bookies", "keeps_ticket_share")
"""Settings of the simulation, not of a broker."""
CONNECT_S = 10.0
"""So long a client waits for a connection."""
DOWN_S = 0.5
"""After which a process that ended by itself is started again, as a supervisor would."""
STOPPED_S = 3.0
"""Timers that have nothing to do, and data in transit, are gone after this time."""
MOST_REDIRECTS = 10


def zookeeper_host(name: str) -> str:
    """The name by which the broker of a host knows ZooKeeper: faults concern one broker."""
    return f"zk-{name}"


class ClusterSimulation(SimulatedRun):
    """`settings`: `brokers` and `bookies` (how many), `keeps_ticket_share`, and fields of BrokerConfig."""

    def __init__(self, seed: int, settings: dict[str, Any]) -> None:
        super().__init__(seed, settings)
        self.violations: list[tuple[str, str]] = []
        self.config_fields = {**FIXED, **{key: each for key, each in settings.items() if key not in OWN_SETTINGS}}
        self.zookeeper = ZooKeeperModel(self.loop, self.chance("zookeeper"))
        self.loop.create_connection = self._create_connection  # type: ignore[method-assign,assignment]
        random.seed(seed)  # pauses of the brokers' own clients
        self.zookeeper.prepare(CLUSTER)
        self.zookeeper.on_event = self._node_changed
        self.bookies = SimulatedBookies(self.loop, self.chance("bookies"), settings.get("bookies", 3), self.zookeeper)
        self.bookies.register()
        self.hosts = {
            name: Host(name, self._host_network(name), f"directory of {name}")
            for name in (f"b{number}" for number in range(settings.get("brokers", 3)))
        }
        self._keeps_ticket_share = settings.get("keeps_ticket_share", 0.5)
        self._crash_chance = self.chance("crashes")
        self._exchange_chance = self.chance("http")
        self._requests = 0
        self._boundaries_seen: set[str] = set()

    def _host_network(self, name: str) -> HostNetwork:
        def heard(direction: str, data: bytes) -> None:
            self._heard(f"{name} {direction}", data)

        return HostNetwork(self.chance(f"network of {name}"), self.loop, heard, self._delivered)

    # --- brokers -----------------------------------------------------------------------------------------------------

    @property
    def lives_now(self) -> list[ClusterLife]:
        """The processes that run and serve."""
        return [host.life for host in self.hosts.values() if host.is_up and host.life is not None]

    async def start_all(self) -> None:
        async with asyncio.TaskGroup() as group:
            for name in self.hosts:
                group.create_task(self.start(name))

    async def start(self, name: str) -> None:
        """Start a process; again, while it ends during its start."""
        host = self.hosts[name]
        while host.life is None or host.life.is_over:
            self.starts += 1
            url = f"zk:{zookeeper_host(name)}:2181"
            fields = {**self.config_fields, "metadata_store_url": url, "advertised_address": name}
            chance = self.chance(f"broker {name} {host.lives}")
            life = ClusterLife(self.loop, host, chance, BrokerConfig(**fields), self.bookies, self._exchange)
            host.life = life
            self.lives.append(life)
            try:
                await life.ask(life.start())
            except Gone:
                return  # it was killed, and is started again by whoever killed it
            except StoreError as error:
                self.note(life.name, "start refused", reason=str(error))
                self._end(host)
                await asyncio.sleep(DOWN_S)
                continue
            self.note(life.name, "started", session=life.session_id)

    async def stop(self, name: str) -> None:
        """Stop in order, as on SIGTERM."""
        host = self.hosts[name]
        life = host.life
        if life is None or not host.is_up:
            return
        self.note(life.name, "stopping")
        try:
            await life.ask(life.stop())
        except Gone:
            return
        self.note(life.name, "stopped")
        await asyncio.sleep(STOPPED_S)
        for line in after_stop(life):
            self._violation("left after stop", f"{life.name}: {line}")
        self._end(host)

    def kill(self, name: str) -> None:
        """kill -9, between two callbacks."""
        host = self.hosts[name]
        if host.life is None or host.life.is_over:
            return
        self.crashes += 1
        self.note(host.life.name, "killed")
        if self._crash_chance.random() >= self._keeps_ticket_share:
            host.ticket = None
        self._end(host)

    def _end(self, host: Host) -> None:
        life = host.life
        assert life is not None
        life.end()
        host.network.die(life, keeps_unsent=True)
        for other in self.hosts.values():
            other.network.client_died(life)
        self.zookeeper.cut(zookeeper_host(host.name))
        self.bookies.broker_died(host.name)

    def freeze(self, name: str) -> None:
        """SIGSTOP."""
        life = self.hosts[name].life
        if life is not None:
            self.note(life.name, "frozen")
            self.loop.stop_process(life)

    def thaw(self, name: str) -> None:
        """SIGCONT."""
        life = self.hosts[name].life
        if life is not None and life.is_stopped:
            self.note(life.name, "thawed")
            self.loop.resume_process(life)

    # --- clients and administrators ----------------------------------------------------------------------------------

    async def connect(self, name: str) -> Wire:
        """A new connection to the broker of a host. Raises ConnectionError."""
        host = self.hosts[name]
        await asyncio.sleep(host.network.delay_s())
        await self._reach(host)
        life, port = host.life, host.network.ports.get(PORT)
        if life is None or life.is_over or not isinstance(port, MemoryPort):
            raise ConnectionRefusedError(name)
        self._wires += 1
        wire = Wire(self._wires, host.network, self)
        port.join(wire)
        return wire

    async def _create_connection(
        self, factory: Callable[[], asyncio.Protocol], host: str = "", port: int = 0, **_: Any
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """As `loop.create_connection`, for brokers: to ZooKeeper, or to a broker."""
        if host not in self.hosts:
            return await self.zookeeper.connect(factory, host, port)
        found = self.hosts[host]
        await asyncio.sleep(found.network.delay_s())
        await self._reach(found)
        of_port = found.network.ports.get(port)
        if found.life is None or found.life.is_over or not isinstance(of_port, MemoryPort):
            raise ConnectionRefusedError(errno.ECONNREFUSED, host)
        protocol = factory()
        return of_port.join(protocol), protocol

    async def _reach(self, host: Host) -> None:
        """Wait while nothing arrives at the broker. Raises ConnectionError after a time-out."""
        ends_s = self.loop.time() + CONNECT_S
        while host.network.is_partitioned or (host.life is not None and host.life.is_stopped):
            if self.loop.time() > ends_s:
                raise ConnectionRefusedError(f"{host.name} does not answer")
            await asyncio.sleep(0.1)

    async def http(
        self, name: str, method: str, path: str, body: Any = None, query: dict[str, Any] | None = None
    ) -> tuple[int, Any]:
        """Status and body of a call at a broker, and at those to which it redirects. Raises ConnectionError."""
        asked, parameters = path, dict(query or {})
        for _ in range(MOST_REDIRECTS):
            status, location, answer = await self._exchange(name, method, asked, body, parameters)
            if status != 307:
                return status, answer
            url = urlsplit(location)
            name, asked, parameters = url.hostname or "", url.path, dict(parse_qsl(url.query))
        self._violation("lookup", f"{method} {path} was redirected {MOST_REDIRECTS} times, last to {name}")
        return 503, None

    async def _exchange(
        self, name: str, method: str, path: str, body: Any, query: dict[str, Any]
    ) -> tuple[int, str, Any]:
        host = self.hosts[name]
        await asyncio.sleep(host.network.delay_s())
        await self._reach(host)
        life = host.life
        if life is None or life.is_over or life.http is None:
            raise ConnectionRefusedError(name)
        self._requests += 1
        who, request = ("http", self._requests), self._requests
        self.coverage.begins(who, request, http_name(method, path))
        try:
            answer: tuple[int, str, Any] = await life.ask(life.http.exchange(method, path, body, query))
        finally:
            self.coverage.ends(who, request)
        if self.notes_commands:
            self.note(life.name, "answers", request=f"{method} {path} {query}", status=answer[0], location=answer[1])
        self._heard("http", repr((name, method, path, answer)).encode())
        await asyncio.sleep(host.network.delay_s())
        return answer

    # --- what the simulation sees ------------------------------------------------------------------------------------

    def owners(self, topic: str) -> list[str]:
        """The processes that would serve `topic` now."""
        return [life.name for life in self._running() if _serves(life, topic) is not None]

    def _running(self) -> list[ClusterLife]:
        return [
            life
            for host in self.hosts.values()
            if (life := host.life) is not None and not life.is_over and life.service is not None
        ]

    def _life_of(self, session: int) -> ClusterLife | None:
        return next((life for life in self._running() if life.session_id == session), None)

    def _node_changed(self, session: int, event: NodeEvent) -> None:
        """ZooKeeper performed a change of a session."""
        bundle = bundle_of_path(event.path) if event.path.startswith(f"{OWNERS}/") else None
        if bundle is None:
            return
        if event.type is NodeEventType.DELETED:
            self._released(session, bundle)
        if event.type is not NodeEventType.CREATED:
            return
        creator = self._life_of(session)
        self.note("zookeeper", "owner", bundle=str(bundle), broker=creator.name if creator else session)
        for life in self._running():
            assert life.service is not None
            ownership = life.service.ownership
            if life is not creator and ownership is not None and ownership.serves(bundle):
                self._violation("two owners", f"{life.name} serves {bundle}, which ZooKeeper gave to session {session}")

    def _released(self, session: int, bundle: NamespaceBundle) -> None:
        """An owner deleted its document: its topics are closed, unless the bundle was split."""
        life = self._life_of(session)
        if life is None or life.service is None or life.service.ownership is None:
            return
        if bundle not in life.service.ownership.bundles_of(bundle.namespace):
            return
        for name, topic in life.service.loaded.persistent.items():
            if bundle.contains(topic.name):
                self._violation("release order", f"{life.name} gave {bundle} up while it had {name} loaded")

    def _delivered(self, process: Process, topic: str, message: pb.CommandMessage) -> None:
        """A broker writes a MESSAGE."""
        assert isinstance(process, ClusterLife)
        position = f"{message.message_id.ledgerId}:{message.message_id.entryId}"
        if not topic or process.service is None or process.service.ownership is None:
            self._violation("delivery by owner", f"{process.name} delivered {position} of an unknown topic {topic!r}")
            return
        for other in self._running():
            if other is not process and (bundle := _serves(other, topic)) is not None:
                self._violation(
                    "delivery by owner", f"{process.name} delivered {position} of {topic}; {other.name} serves {bundle}"
                )
        owned = process.service.ownership.bundle_of(TopicName.parse(topic))
        node = self.zookeeper.tree.nodes.get(owned.path)
        if node is not None and node.owner != process.session_id:
            owner = self._life_of(node.owner)
            self._violation(
                "delivery by owner",
                f"{process.name} delivered {position} of {topic}, owned by {owner.name if owner else node.owner}",
            )

    def _violation(self, rule: str, text: str) -> None:
        if not self._is_ending and (rule, text) not in self.violations:
            self.violations.append((rule, text))
            self.note("judge", "violation", rule=rule, text=text)

    def command_sent(self, wire: Wire, command: pb.BaseCommand) -> None:
        super().command_sent(wire, command)
        if command.type == pb.BaseCommand.SUBSCRIBE:
            subscribe = command.subscribe
            wire._transport.peer.topics[subscribe.consumer_id] = subscribe.topic  # type: ignore[attr-defined]

    def _bury(self) -> None:
        for life in self.lives:
            self.loop.resume_process(life)
        super()._bury()


def _serves(life: BrokerLife, topic: str) -> NamespaceBundle | None:
    """The bundle of `topic` if the process serves it."""
    if life.service is None or life.service.ownership is None:
        return None
    bundle = life.service.ownership.bundle_of(TopicName.parse(topic))
    return bundle if life.service.ownership.serves(bundle) else None
