"""Brokers that share the bundles of one namespace, with every operation of the store interrupted at random places.

The real ownership runs on a shared store with sessions. The oracle knows which topics are open at which broker: a topic that is
open at two brokers, or a bundle that two brokers serve, is a failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from random import Random

from tests.support.cluster_brokers import FixedRegistry, registered
from tests.support.shared_store import SharedSession, SharedTree

from pybroker.cluster.bundles import split_boundaries
from pybroker.cluster.ownership.bundle_ownership import BundleOwnership
from pybroker.cluster.ownership.namespace_bundle import NamespaceBundle
from pybroker.errors import AdminError, BrokerError, StoreError
from pybroker.metadata import metadata_paths
from pybroker.metadata.resources import Resources
from pybroker.model.names import NamespaceName, TopicName
from pybroker.model.policies import BundlesData

NAMESPACE = NamespaceName("public", "default")
TOPICS = [TopicName("persistent", NAMESPACE, f"topic-{number}") for number in range(2)]
BROKERS = 3
PAUSES = (0, 0, 1, 1, 2, 3)
"""Iterations of the event loop before and behind each operation of the store."""
SLOW_PAUSES = (5, 10, 20, 40)
"""Of one broker in each run: while it does one thing, the others do many."""
ACTIONS = {
    "look up": 4,
    "load": 8,
    "unload": 3,
    "split": 1,
    "lose session": 1,
    "freeze": 1,
    "end sessions": 2,
    "renew session": 2,
    "refresh": 3,
}
"""With their frequencies."""


class DoubleOwnership(AssertionError):
    """Two brokers serve the same topic."""


class ModelTopics:
    """The topics of one broker, as the lifecycle of real topics treats them: nothing opens without ownership."""

    def __init__(self, model: OwnershipModel, broker: ModelBroker) -> None:
        self._model = model
        self._broker = broker
        self.open: set[TopicName] = set()
        self.loading: set[TopicName] = set()

    def acquired(self, bundle: NamespaceBundle) -> None:
        pass

    async def fence(self, bundles: Collection[NamespaceBundle]) -> None:
        self.open -= {topic for topic in self.open if any(bundle.contains(topic) for bundle in bundles)}

    async def close(self, bundles: Collection[NamespaceBundle]) -> None:
        await self.fence(bundles)
        while any(bundle.contains(topic) for topic in self.loading for bundle in bundles):  # noqa: ASYNC110
            await asyncio.sleep(0)
        await self.fence(bundles)
        await self._model.pause(self._broker)

    async def load(self, ownership: BundleOwnership, topic: TopicName) -> None:
        ownership.require_served(topic)
        if topic in self.loading:
            return
        self.loading.add(topic)
        try:
            await self._model.pause(self._broker)
            ownership.require_served(topic)
            self.open.add(topic)
        finally:
            self.loading.discard(topic)


class ModelBroker:
    """One broker."""

    def __init__(self, model: OwnershipModel, number: int, ownership_class: type[BundleOwnership]) -> None:
        self.store = SharedSession(model.tree, lambda: model.pause(self))
        self.resources = Resources(self.store)
        self.registry = FixedRegistry(registered(number), model.registered)
        self.topics = ModelTopics(model, self)
        self.ownership = ownership_class(
            self.store, self.resources, self.registry, self.topics, Random(model.random.random())
        )


class OwnershipModel:
    """Run with `run`, which raises DoubleOwnership."""

    def __init__(self, seed: int, ownership_class: type[BundleOwnership] = BundleOwnership) -> None:
        self.random = Random(seed)
        self.tree = SharedTree()
        self.registered = {broker.broker_id: broker for broker in map(registered, range(BROKERS))}
        self._ownership_class = ownership_class
        self.brokers: list[ModelBroker] = []
        self._is_started = False
        self._slow: ModelBroker | None = None
        self.served = 0

    async def pause(self, broker: ModelBroker | None = None) -> None:
        if not self._is_started:
            return
        is_slow = broker is not None and broker is self._slow
        for _ in range(self.random.choice(SLOW_PAUSES if is_slow else PAUSES)):
            await asyncio.sleep(0)
            self.check()

    def check(self) -> None:
        """Compare what each broker may deliver: a broker delivers nothing when its session's time is over."""
        opened: dict[TopicName, int] = {}
        for number, broker in enumerate(self.brokers):
            broker.ownership.held.check_invariants()
            if not broker.ownership.holds_session():
                continue
            for topic in broker.topics.open:
                if topic in opened:
                    raise DoubleOwnership(f"{topic} is open at brokers {opened[topic]} and {number}")
                opened[topic] = number
        served: dict[NamespaceBundle, int] = {}
        for number, broker in enumerate(self.brokers):
            for bundle in broker.ownership.owned_bundles():
                if not broker.ownership.serves(bundle):
                    continue
                if bundle in served:
                    raise DoubleOwnership(f"{bundle} is served by brokers {served[bundle]} and {number}")
                served[bundle] = number
        self.served += bool(opened)

    async def run(self, actions: int = 100) -> None:
        await self._prepare()
        for number in range(BROKERS):
            broker = ModelBroker(self, number, self._ownership_class)
            await broker.resources.load()
            broker.registry.leader_id = "broker0:8080"
            broker.registry.choose = lambda _bundle: self.random.choice(list(self.registered.values()))
            await broker.ownership.start()
            self.brokers.append(broker)
        self._is_started = True
        self._slow = self.random.choice(self.brokers)
        tasks: set[asyncio.Task[None]] = set()
        for _ in range(actions):
            task = asyncio.create_task(self._act(self._drawn(), self.random.choice(self.brokers)))
            tasks.add(task)
            for _ in range(self.random.choice((0, 1, 3, 8))):
                await asyncio.sleep(0)
                self.check()
            tasks = self._finished(tasks)
        for broker in self.brokers:
            if broker.store.is_lost:
                broker.store.renew()
        while tasks:
            await asyncio.sleep(0)
            self.check()
            tasks = self._finished(tasks)
        for broker in self.brokers:
            await broker.ownership.close()

    def _drawn(self) -> str:
        return self.random.choices(list(ACTIONS), list(ACTIONS.values()))[0]

    def _finished(self, tasks: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
        for task in [task for task in tasks if task.done()]:
            task.result()
            tasks.discard(task)
        return tasks

    async def _prepare(self) -> None:
        resources = Resources(SharedSession(self.tree), default_bundle_count=1)
        await resources.load()
        await resources.bootstrap("c1")
        assert resources.namespace(NAMESPACE) is not None

    async def _act(self, action: str, broker: ModelBroker) -> None:
        topic = self.random.choice(TOPICS)
        try:
            await self._perform(action, broker, topic)
        except (AdminError, BrokerError, StoreError):
            return

    async def _perform(self, action: str, broker: ModelBroker, topic: TopicName) -> None:
        ownership, store = broker.ownership, broker.store
        match action:
            case "look up":
                await ownership.owner_of(topic, None, is_authoritative=self.random.random() < 0.5)
            case "load":
                await ownership.owner_of(topic, None, is_authoritative=True)
                await broker.topics.load(ownership, topic)
            case "unload":
                await ownership.release(ownership.bundle_of(topic))
            case "split":
                await self._split(broker, ownership.bundle_of(topic))
            case "lose session":
                if not store.is_lost:
                    store.lose()
            case "freeze":
                if not store.is_lost:
                    store.lose(with_event=False)
            case "end sessions":
                await store.end_past_sessions()
            case "renew session":
                if store.is_lost:
                    store.renew()
            case "refresh":
                await broker.resources.refresh(metadata_paths.policies(NAMESPACE))

    async def _split(self, broker: ModelBroker, bundle: NamespaceBundle) -> None:
        policies = broker.resources.namespace(NAMESPACE)
        assert policies is not None
        whole = bundle.range
        middle = whole.lower + (whole.upper - whole.lower) // 2
        if whole not in {each.range for each in broker.ownership.bundles_of(NAMESPACE)} or middle <= whole.lower:
            return

        def change(bundles: BundlesData) -> BundlesData:
            boundaries = split_boundaries(bundles.boundaries, whole, [middle])
            return BundlesData(boundaries, len(boundaries) - 1)

        parts = [
            bundle._replace(range=whole._replace(upper=middle)),
            bundle._replace(range=whole._replace(lower=middle)),
        ]
        await broker.ownership.split(bundle, parts, lambda: broker.resources.update_bundles(NAMESPACE, change))
