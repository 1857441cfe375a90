"""Brokers on one simulated ZooKeeper: their caches, counters, claims and session values, under faults drawn from a seed.

    story = SharedMetadataStory.play(7)       # story.findings: what was promised and did not hold

Each broker is the broker's own code for shared metadata (store, caches with their refresher, id, sequential numbers) in a
process of its own, on virtual time. Rules:

* a session value has one owner: when the server creates it, no other broker believes that it holds it,
* an answered change is there; a refused one did not happen (each broker counts in a value that only it writes),
* no number of a sequential value is given twice,
* at rest all caches are equal, and equal to what a new broker reads; each broker has its id in its present session,
* a lost session is reported by the broker's own clock before the server ends it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import Any

from tests.simulate.loop import Process, SimulatedLoop
from tests.simulate.simulated_run import quiet_collector
from tests.simulate.zookeeper_model import ZooKeeperModel
from tests.support.shared_caches import Caches, RandomChanges

from pybroker.errors import BadVersionError, StoreError, UnknownOutcome
from pybroker.metadata.broker_identity import BROKERS_PATH, BrokerIdentity
from pybroker.metadata.metadata_store import NOT_EXISTING
from pybroker.metadata.session_report import SessionEvent
from pybroker.metadata.shared_metadata import bootstrap_shared
from pybroker.metadata.zookeeper_metadata_store import ZooKeeperMetadataStore
from pybroker.runtime import logs
from pybroker.zookeeper import ClientOptions, NodeEvent, ServerAddresses

BROKERS = ("one", "two", "three")
SESSION_MS = 2000
OPERATION_MS = 4000
FAULTS = 12
REST_S = 300.0
NOTICED_S = 1.0
"""Within this time after the last fault, each broker knows whether its session has ended."""
OWNED = "/owned/value"
NUMBERS = "/numbers/n-"


class SimulatedBroker(Process):
    """One life of a broker."""

    def __init__(self, story: SharedMetadataStory, name: str, chance: Random) -> None:
        super().__init__()
        self.story = story
        self.name = name
        self.chance = chance
        self.caches: Caches | None = None
        self.identity: BrokerIdentity | None = None
        self.owns_in = 0
        """The session in which this broker believes that it holds the owned value; 0 without."""

    @property
    def store(self) -> ZooKeeperMetadataStore:
        assert self.caches is not None
        store = self.caches.store
        assert isinstance(store, ZooKeeperMetadataStore)
        return store

    @property
    def session_id(self) -> int:
        return self.store._client.session_id

    def believes(self) -> bool:
        """Whether it acts as the owner now."""
        return not self.is_over and self.owns_in != 0 and self.store.holds_session() and self.owns_in == self.session_id

    def start(self) -> None:
        self.story.loop.create_task(self._run(), context=self.context.copy())

    async def _run(self) -> None:
        loop = self.story.loop
        options = ClientOptions(
            session_timeout_ms=SESSION_MS, operation_timeout_ms=OPERATION_MS, clock_ms=lambda: loop.time() * 1000
        )
        try:
            addresses = ServerAddresses.parse(self.name)
            store = await ZooKeeperMetadataStore.open(addresses, options, REST_S, self.chance)
            caches = Caches(store)
            store.listen(self._session_changed)
            await self._until_done(caches.load)
            await self._until_done(lambda: bootstrap_shared(caches.resources, "c1"))
            self.caches = caches
            self.identity = BrokerIdentity(store, self.name, f"directory of {self.name}", {})
            await self.identity.claim(REST_S)
            async with asyncio.TaskGroup() as group:
                for act in (self._change, self._count, self._own, self._draw_numbers):
                    group.create_task(self._repeat(act))
        except Exception as error:  # noqa: BLE001  (whatever escapes is a finding)
            self.story.findings.append(f"{self.name} failed: {error!r}")

    async def _until_done(self, act: Any) -> None:
        while True:
            try:
                await act()
            except StoreError:
                await asyncio.sleep(0.1)
            else:
                return

    async def _repeat(self, act: Any) -> None:
        while not self.story.is_quiet:
            with suppress(StoreError):  # unreachable, or an outcome that cannot be told
                await act()
            await asyncio.sleep(self.chance.uniform(0, 0.4))

    def _session_changed(self, event: SessionEvent) -> None:
        if event is SessionEvent.LOST:
            self.owns_in = 0

    async def _change(self) -> None:
        assert self.caches is not None
        await RandomChanges(self.caches, self.chance).step()

    async def _count(self) -> None:
        """Count up in a value of this broker: the version that it knows is always the present one."""
        path, counted = f"/counted/{self.name}", self.story.counted
        known = counted.get(self.name)
        value = str(0 if known is None else known + 1).encode()
        try:
            version = await self.store.put(path, value, NOT_EXISTING if known is None else known)
        except BadVersionError as error:
            self.story.findings.append(f"{self.name} was refused its own value: {error}")
            counted.pop(self.name, None)
        except UnknownOutcome:
            while True:
                with suppress(StoreError):
                    found = await self.store.get(path)
                    break
                await asyncio.sleep(0.1)
            if found is not None:
                counted[self.name] = found.version
        else:
            if str(version).encode() != value:
                self.story.findings.append(f"{self.name} put {value.decode()} and was told version {version}")
            counted[self.name] = version

    async def _own(self) -> None:
        session_id = self.session_id
        try:
            await self.store.put_for_session(OWNED, self.name.encode())
        except BadVersionError:
            return
        if session_id != self.session_id or not self.store.holds_session():
            return
        self.owns_in = session_id
        await asyncio.sleep(self.chance.uniform(0, 1.5))
        if self.believes():
            self.owns_in = 0
            with suppress(BadVersionError):
                await self.store.delete(OWNED)

    async def _draw_numbers(self) -> None:
        path = await self.store.create_sequential(NUMBERS, b"", for_session=True)
        if path in self.story.numbers:
            self.story.findings.append(f"{path} was given twice")
        self.story.numbers.add(path)


class SharedMetadataStory:
    """Made by `play`."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.loop = SimulatedLoop(self.chance("loop"), 1000.0)
        self.findings: list[str] = []
        self.counted: dict[str, int] = {}
        self.numbers: set[str] = set()
        self.is_quiet = False
        self.is_over = False
        self.brokers: dict[str, SimulatedBroker] = {}
        self.lives: list[SimulatedBroker] = []
        self.lost_sessions = 0
        self.model: ZooKeeperModel

    @classmethod
    def play(cls, seed: int) -> SharedMetadataStory:
        story = cls(seed)
        with quiet_collector(), story._bugs_heard():
            try:
                story.loop.run_until_complete(story.loop.create_task(story._play()))
            except (Exception, AssertionError) as error:  # noqa: BLE001
                story.findings.append(f"escaped: {error!r}")
            finally:
                story._bury()
        return story

    def chance(self, name: str) -> Random:
        return Random(f"{self.seed} {name}")

    async def _play(self) -> None:
        self.model = ZooKeeperModel(self.loop, self.chance("server"))
        self.loop.create_connection = self.model.connect  # type: ignore[method-assign,assignment]
        self.model.on_event = self._happened
        for name in BROKERS:
            self._start(name)
        await self._disturb()
        self.is_quiet = True
        await self._come_to_rest()
        await self._judge()

    def _start(self, name: str) -> None:
        number = len(self.lives)
        broker = SimulatedBroker(self, name, self.chance(f"{name} {number}"))
        self.brokers[name] = broker
        self.lives.append(broker)
        broker.start()

    async def _disturb(self) -> None:
        chance = self.chance("faults")
        for _ in range(FAULTS):
            await asyncio.sleep(chance.uniform(0.1, 2))
            name = chance.choice(BROKERS)
            match chance.randrange(7):
                case 0:
                    self.model.cut(chance.choice([name, None]))
                case 1:
                    self.model.freeze(name, chance.uniform(0.05, 0.9))
                case 2 | 3:
                    self.model.freeze(name, chance.uniform(1, 6))
                case 4:
                    self.model.refuse(chance.uniform(0.1, 4))
                case 5:
                    self.model.lost_answers += chance.randrange(1, 4)
                case 6:
                    self._kill(name)
                    await asyncio.sleep(chance.choice([0.1, 3]))
                    self._start(name)

    def _kill(self, name: str) -> None:
        broker = self.brokers[name]
        self.loop.end(broker)
        self.model.cut(name)
        if broker.caches is not None:  # what it was about to count is unknown: the next life reads it
            node = self.model.tree.nodes.get(f"/counted/{name}")
            self.counted.pop(name, None)
            if node is not None:
                self.counted[name] = node.version

    def _happened(self, session: int, event: NodeEvent) -> None:
        """The server performed a change."""
        if event.path != OWNED or event.type is not event.type.CREATED:
            return
        for broker in self.brokers.values():
            if broker.caches is not None and broker.believes() and broker.owns_in != session:
                self.findings.append(
                    f"{broker.name} believes that it owns {OWNED}, which the server gave to another one"
                )

    async def _come_to_rest(self) -> None:
        last_fault_s = max([self.model.refuses_until_s, *self.model.thaws_s.values()])
        await asyncio.sleep(max(0.0, last_fault_s - self.loop.time()) + NOTICED_S)
        deadline_s = self.loop.time() + REST_S
        while not all(self._is_at_rest(broker) for broker in self.brokers.values()):
            if self.loop.time() > deadline_s:
                self.findings.append("the brokers do not come to rest")
                return
            await asyncio.sleep(0.5)
        await asyncio.sleep(5)  # the claim of an id is repeated after a pause

    def _is_at_rest(self, broker: SimulatedBroker) -> bool:
        return (
            broker.caches is not None
            and broker.identity is not None
            and broker.store.holds_session()
            and not broker.caches.refresher.pending
        )

    async def _judge(self) -> None:
        options = ClientOptions(session_timeout_ms=SESSION_MS, clock_ms=lambda: self.loop.time() * 1000)
        fresh = Caches(
            await ZooKeeperMetadataStore.open(ServerAddresses.parse("fresh"), options, REST_S, self.chance("fresh"))
        )
        await fresh.load()
        for name, broker in self.brokers.items():
            if broker.caches is None:
                continue
            if broker.caches.content() != fresh.content():
                self.findings.append(f"the caches of {name} are stale")
            node = self.model.tree.nodes.get(f"{BROKERS_PATH}/{name}")
            if node is None or node.owner != broker.session_id:
                self.findings.append(f"{name} has lost its id {json.dumps(node and node.value.decode())}")
            counter = self.model.tree.nodes.get(f"/counted/{name}")
            known = self.counted.get(name)
            if known is not None and (counter is None or counter.version < known):
                self.findings.append(f"{name} counted to {known}, and the server has {counter and counter.version}")
        self.lost_sessions = len(self.model.lost_sessions)

    @contextmanager
    def _bugs_heard(self) -> Iterator[None]:
        names = ("debug", "info", "warning", "error")
        saved = {name: getattr(logs, name) for name in names}

        def hear(event: str, /, exc_info: Any = None, **fields: Any) -> None:
            if not self.is_over and event in ("task.failed", "metadata_watch.failed"):
                self.findings.append(f"{event}: {exc_info!r} {fields}")

        for name in names:
            setattr(logs, name, hear)
        try:
            yield
        finally:
            for name, function in saved.items():
                setattr(logs, name, function)

    def _bury(self) -> None:
        self.is_over = True
        for broker in self.lives:
            self.loop.bury(broker)
        for task in self.loop.tasks(None):  # type: ignore[arg-type]
            task.cancel()
        for _ in range(20):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()
        self.loop.close()
