"""Rounds of random faults of a cluster: three brokers on ZooKeeper and three bookies, while clients of all kinds work.

`ROUNDS` in the environment sets their number (`make cluster-rounds` uses 200), `ROUNDS_SEED` the seed, `ROUNDS_KINDS` the kinds.
Each broker reaches ZooKeeper, and its clients reach it, through a proxy, so that either side can be partitioned. After each round,
all clients must be connected, and all subscriptions must have received all messages with a receipt. Every few rounds, all topics
are checked as a whole after the loss of two brokers, and other topics begin.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from tests.bookkeeper.cluster_load import ClusterLoad, Service
from tests.bookkeeper.conftest import init_metadata
from tests.bookkeeper.test_cluster import call
from tests.bookkeeper.transaction_load import TransactionLoad
from tests.support.bookkeeper_cluster import BookKeeperCluster, bookkeeper_cluster
from tests.support.broker_process import BrokerProcess
from tests.support.frame_proxy import FrameProxy, StreamProxy
from tests.support.zookeeper_server import free_port

from pybroker.transactions.coordinators import partition_of

ROUNDS = int(os.environ.get("ROUNDS", "0"))
SEED = int(os.environ.get("ROUNDS_SEED", "1"))
pytestmark = [pytest.mark.long, pytest.mark.skipif(not ROUNDS, reason="runs with ROUNDS set: make cluster-rounds")]

BROKERS = 3
PARTITIONS = 3
BUNDLES = 8
SESSION_MS = 3000
SESSION_S = SESSION_MS / 1000
STORY_ROUNDS = 10
DEADLINE_S = 90.0
"""For the clients to catch up after a fault is mended."""
CALL_DEADLINE_S = 30.0
PAUSE_S = 0.1
LISTENER = "clients"
KILLS = ("kill", "kill_and_wait", "kill_two", "kill_all", "kill_leader", "kill_coordinator")
FREEZES = ("freeze", "freeze_short", "freeze_two")
PARTITIONED = ("store_silent", "store_refused", "store_short", "store_lost_twice", "clients_cut", "clients_silent")
OTHERS = (
    "zookeeper_restart",
    "zookeeper_frozen",
    "bookie_killed",
    "bookie_killed_and_broker",
    "bookie_frozen_and_unload",
)
ORDERS = ("unload", "split", "split_and_unload", "transfer", "transfer_all", "stop", "drain", "rolling_restart")
PAIRS = ("kill_during_unload", "transfer_to_frozen", "split_without_store", "kill_beside_partition")
KINDS = tuple(
    os.environ.get("ROUNDS_KINDS", ",".join((*KILLS, *FREEZES, *PARTITIONED, *OTHERS, *ORDERS, *PAIRS))).split(",")
)
SETTINGS = {
    "clusterName": "c1",
    "advertisedAddress": "127.0.0.1",
    "ledgerStore": "bookkeeper",
    "acknowledgmentAtBatchIndexLevelEnabled": "true",
    "transactionCoordinatorEnabled": "true",
    "managedLedgerDefaultEnsembleSize": "2",
    "managedLedgerDefaultWriteQuorum": "2",
    "managedLedgerDefaultAckQuorum": "2",
    "managedLedgerMaxEntriesPerLedger": "500",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "managedLedgerCursorMaxEntriesPerLedger": "50",
    "bookkeeperClientTimeoutInSeconds": "2",
    "metadataStoreSessionTimeoutMillis": str(SESSION_MS),
    "metadataStoreOperationTimeoutSeconds": "3",
}


class Member:
    """One broker with the proxies between it and ZooKeeper, and between its clients and it."""

    def __init__(self, process: BrokerProcess, store: FrameProxy, clients: StreamProxy) -> None:
        self.process = process
        self.store = store
        self.clients = clients

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"pulsar://127.0.0.1:{self.clients.port}"

    @property
    def broker_id(self) -> str:
        return self.process.http_url.removeprefix("http://")

    async def start(self) -> None:
        await asyncio.to_thread(self.process.start)

    def signal(self, number: signal.Signals) -> None:
        assert self.process.process is not None
        self.process.process.send_signal(number)

    async def kill(self) -> None:
        await asyncio.to_thread(self.process.kill)

    async def stop(self) -> None:
        assert await asyncio.to_thread(self.process.stop) == 0


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[BookKeeperCluster]:
    with bookkeeper_cluster(3, {"zkTimeout": 2 * SESSION_MS}) as started:
        yield started


@asynccontextmanager
async def running_members(cluster: BookKeeperCluster, directory: Path) -> AsyncIterator[list[Member]]:
    await asyncio.to_thread(init_metadata, "c1", cluster.zookeeper.address)
    members: list[Member] = []
    async with AsyncExitStack() as stack:
        for number in range(BROKERS):
            port = free_port()
            store, clients = FrameProxy("127.0.0.1", cluster.zookeeper.port), StreamProxy("127.0.0.1", port)
            for proxy in (store, clients):
                await proxy.start()
                stack.push_async_callback(proxy.close)
            own = directory / f"broker{number}"
            own.mkdir()
            settings = {
                **SETTINGS,
                "metadataStoreUrl": f"zk:127.0.0.1:{store.port}",
                "advertisedListeners": f"internal:pulsar://127.0.0.1:{port},{LISTENER}:pulsar://127.0.0.1:{clients.port}",
            }
            member = Member(BrokerProcess(own, settings), store, clients)
            member.process.ready["broker_port"] = port  # before its first start, because it advertises the port
            await member.start()
            stack.push_async_callback(member.kill)
            members.append(member)
        yield members


class Rounds:
    """Causes faults of a cluster and mends them."""

    def __init__(self, cluster: BookKeeperCluster, members: list[Member], chance: Random) -> None:
        self._cluster = cluster
        self._members = members
        self._chance = chance
        self.namespace = ""
        self.topic = ""

    async def happen(self, kind: str) -> None:
        """Cause one fault, wait, and mend it."""
        if kind in KILLS:
            await self._kill(kind)
        elif kind in FREEZES:
            await self._freeze(kind)
        elif kind in PARTITIONED:
            await self._partition(kind)
        elif kind in OTHERS:
            await self._beside(kind)
        elif kind in ORDERS:
            await self._order(kind)
        else:
            await self._pair(kind)

    # --- faults

    async def _kill(self, kind: str) -> None:
        match kind:
            case "kill_two":
                victims = self._chance.sample(self._members, 2)
            case "kill_all":
                victims = list(self._members)
            case "kill_leader":
                victims = [await self._leader()]
            case "kill_coordinator":
                victims = [await self._owner(str(partition_of(self._chance.randrange(4))))]
            case _:
                victims = [await self._owner()]
        for victim in victims:
            await victim.kill()
        await self._wait(SESSION_S)
        if kind in {"kill_and_wait", "kill_two"}:
            await asyncio.sleep(SESSION_S)
        await asyncio.gather(*(victim.start() for victim in victims))

    async def _freeze(self, kind: str) -> None:
        victims = [await self._owner()]
        if kind == "freeze_two":
            victims.append(self._other(victims[0]))
        for victim in victims:
            victim.signal(signal.SIGSTOP)
        await (self._wait(SESSION_S / 2) if kind == "freeze_short" else self._longer_than_session())
        for victim in victims:
            victim.signal(signal.SIGCONT)

    async def _partition(self, kind: str) -> None:
        victim = await self._owner()
        match kind:
            case "store_silent":
                victim.store.freeze()
                await self._longer_than_session()
                victim.store.thaw()
                victim.store.cut()
            case "store_refused":
                victim.store.refuse()
                await self._longer_than_session()
                await victim.store.start()
            case "store_short":
                victim.store.refuse()
                await self._wait(SESSION_S / 2)
                await victim.store.start()
            case "store_lost_twice":
                for _ in range(2):
                    victim.store.refuse()
                    await asyncio.sleep(1.2 * SESSION_S)
                    await victim.store.start()
                    await self._wait(1.0)
            case "clients_cut":
                victim.clients.refuse()
                await self._wait(SESSION_S)
                await victim.clients.start()
            case _:
                victim.clients.freeze()
                await self._longer_than_session()
                victim.clients.thaw()

    async def _beside(self, kind: str) -> None:
        zookeeper, bookie = self._cluster.zookeeper, self._chance.choice(self._cluster.bookies)
        match kind:
            case "zookeeper_restart":
                await asyncio.to_thread(zookeeper.kill)
                await self._wait(SESSION_S)
                await asyncio.to_thread(zookeeper.start)
            case "zookeeper_frozen":
                zookeeper.freeze()
                await self._longer_than_session()
                zookeeper.wake()
            case "bookie_frozen_and_unload":
                bookie.freeze()
                await self._wait(1.0)
                await self._try("PUT", f"{self.namespace}/unload")
                await self._wait(SESSION_S)
                bookie.wake()
            case _:
                await asyncio.to_thread(bookie.kill)
                await self._wait(1.0)
                victim = await self._owner()
                if kind == "bookie_killed_and_broker":
                    await victim.kill()
                await self._wait(SESSION_S)
                await asyncio.to_thread(bookie.start)
                if kind == "bookie_killed_and_broker":
                    await victim.start()

    async def _order(self, kind: str) -> None:
        match kind:
            case "unload":
                await self._ask("PUT", f"{self.namespace}/unload")
            case "split" | "split_and_unload":
                bundle = await self._bundle()
                unloads = "true" if kind == "split_and_unload" else "false"
                await self._ask("PUT", f"{self.namespace}/{bundle}/split?unload={unloads}")
            case "transfer":
                destination = self._chance.choice(self._members)
                await self._transfer(await self._bundle(), destination)
            case "transfer_all":
                await self.divide()
            case "stop":
                victim = await self._owner()
                await victim.stop()
                await self._wait(SESSION_S)
                await victim.start()
            case "drain":
                victim = await self._owner()
                status, _ = await asyncio.to_thread(call, victim.process, "POST", "/admin/v2/brokers/shutdown")
                assert status == 204
                assert victim.process.process is not None
                assert await asyncio.to_thread(victim.process.process.wait, CALL_DEADLINE_S) == 0
                await victim.start()
            case _:
                for member in self._chance.sample(self._members, BROKERS):
                    await member.stop()
                    await member.start()

    async def _pair(self, kind: str) -> None:
        victim = await self._owner()
        match kind:
            case "kill_during_unload":
                unload = asyncio.create_task(self._try("PUT", f"{self.namespace}/unload"))
                await asyncio.sleep(self._chance.random() * 0.1)
                await victim.kill()
                await unload
                await self._wait(SESSION_S)
                await victim.start()
            case "transfer_to_frozen":
                frozen = self._other(victim)
                bundle = await self._bundle()
                frozen.signal(signal.SIGSTOP)
                transfer = asyncio.create_task(
                    self._try("PUT", f"{self.namespace}/{bundle}/unload?destinationBroker={frozen.broker_id}", victim)
                )
                await self._longer_than_session()
                frozen.signal(signal.SIGCONT)
                await transfer
            case "split_without_store":
                bundle = await self._bundle()
                split = asyncio.create_task(self._try("PUT", f"{self.namespace}/{bundle}/split?unload=false", victim))
                await asyncio.sleep(self._chance.random() * 0.05)
                victim.store.refuse()
                await self._longer_than_session()
                await victim.store.start()
                await split
            case _:
                partitioned = self._other(victim)
                partitioned.store.refuse()
                await victim.kill()
                await self._longer_than_session()
                await asyncio.gather(partitioned.store.start(), victim.start())

    async def lose_two(self) -> None:
        """Kill two brokers, so that the check reads what the next owners recovered."""
        victims = self._chance.sample(self._members, 2)
        for victim in victims:
            await victim.kill()
        await asyncio.gather(*(victim.start() for victim in victims))

    # --- calls

    async def divide(self) -> None:
        """Give each bundle of the namespace to a random broker."""
        _, found = await asyncio.to_thread(call, self._members[0].process, "GET", f"{self.namespace}/bundles")
        for lower, upper in pairwise(found["boundaries"]):
            await self._transfer(f"{lower}_{upper}", self._chance.choice(self._members))

    async def _transfer(self, bundle: str, destination: Member) -> None:
        await self._ask("PUT", f"{self.namespace}/{bundle}/unload?destinationBroker={destination.broker_id}")

    async def _ask(self, method: str, path: str) -> None:
        """Repeat a call until it succeeds."""
        deadline = time.monotonic() + CALL_DEADLINE_S
        while (status := await self._try(method, path)) != 204:
            assert time.monotonic() < deadline, f"{method} {path}: {status}"
            await asyncio.sleep(0.3)

    async def _try(self, method: str, path: str, at: Member | None = None) -> int:
        """Call once, which may fail. Return the status; 0 without an answer."""
        broker = (at or self._chance.choice(self._members)).process
        with suppress(OSError):
            return (await asyncio.to_thread(call, broker, method, path))[0]
        return 0

    async def _owner(self, topic: str = "") -> Member:
        """Return the owner of a topic, by default of a random partition."""
        topic = topic or f"{self.topic}-partition-{self._chance.randrange(PARTITIONS)}"
        deadline = time.monotonic() + CALL_DEADLINE_S
        while True:
            broker = self._chance.choice(self._members).process
            path = f"/lookup/v2/topic/{topic.replace('://', '/')}"
            found: object = None
            with suppress(OSError):
                status, found = await asyncio.to_thread(call, broker, "GET", path)
                if status == 200 and isinstance(found, dict):
                    owners = [each for each in self._members if each.process.http_url == found["httpUrl"]]
                    if owners and owners[0].process.process is not None and owners[0].process.process.poll() is None:
                        return owners[0]
            assert time.monotonic() < deadline, f"{topic} has no owner: {found}"
            await asyncio.sleep(0.2)

    async def _bundle(self) -> str:
        topic = f"{self.topic}-partition-{self._chance.randrange(PARTITIONS)}".replace("://", "/")
        status, found = await asyncio.to_thread(
            call, self._members[0].process, "GET", f"/lookup/v2/topic/{topic}/bundle"
        )
        assert status == 200, found
        return str(found)

    async def _leader(self) -> Member:
        _, found = await asyncio.to_thread(call, self._members[0].process, "GET", "/admin/v2/brokers/leaderBroker")
        return next(each for each in self._members if each.broker_id == found["brokerId"])

    def _other(self, member: Member) -> Member:
        return self._chance.choice([each for each in self._members if each is not member])

    async def _longer_than_session(self) -> None:
        await asyncio.sleep(1.2 * SESSION_S)
        await self._wait(SESSION_S)

    async def _wait(self, longest_s: float) -> None:
        await asyncio.sleep(self._chance.random() * longest_s)


def stories(count: int, chance: Random) -> list[list[str]]:
    """Return the kinds of the rounds of each namespace."""
    kinds: list[str] = []
    while len(kinds) < count:
        kinds += chance.sample(KINDS, len(KINDS))
    return [kinds[first : min(first + STORY_ROUNDS, count)] for first in range(0, count, STORY_ROUNDS)]


class Story:
    """The clients of one namespace."""

    def __init__(self, rounds: Rounds, members: list[Member], number: int, chance: Random) -> None:
        self._rounds = rounds
        self._members = members
        self._chance = chance
        self._name = f"public/story-{SEED}-{number}"
        rounds.namespace = f"/admin/v2/namespaces/{self._name}"
        rounds.topic = self._topic("orders")

    def _topic(self, name: str) -> str:
        return f"persistent://{self._name}/{name}"

    async def begin(self) -> None:
        broker = self._members[0].process
        body = {"bundles": {"numBundles": BUNDLES}}
        assert (await asyncio.to_thread(call, broker, "PUT", self._rounds.namespace, body))[0] == 204
        for name in ("orders", "source", "target"):
            path = f"/admin/v2/persistent/{self._name}/{name}/partitions"
            assert (await asyncio.to_thread(call, broker, "PUT", path, PARTITIONS))[0] == 204
        service = Service([each.url for each in self._members], LISTENER)
        self.load = await asyncio.to_thread(
            ClusterLoad, service, self._topic("orders"), self._chance, partitions=PARTITIONS, pause_s=PAUSE_S
        )
        self.load.begin()
        self.transactions = await asyncio.to_thread(
            TransactionLoad, service, self._topic("source"), self._topic("target"), PARTITIONS, self._chance
        )
        self.transactions.begin()

    async def catches_up(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.load.catches_up(DEADLINE_S))
            group.create_task(self.transactions.catches_up(DEADLINE_S))

    async def finish(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.load.stop_publishing(DEADLINE_S))
            group.create_task(self.transactions.stop_feeding(DEADLINE_S))

    async def stop(self) -> None:
        await self.load.stop()
        await self.transactions.stop()

    async def check(self) -> None:
        await self.load.check()
        await self.transactions.check()

    def summary(self) -> str:
        promises, transactions = self.load.promises, self.transactions
        acknowledged = sum(each.receipts for each in self.load.receipted)
        return (
            f"{len(promises.receipted)} messages with receipts, {acknowledged} receipts of acknowledgements,"
            f" {len(transactions.moved)} messages moved by {transactions.committed} transactions, {transactions.aborted} aborted,"
            f" {transactions.unknown} of unknown outcome"
        )


async def test_clients_continue_through_random_rounds(own_cluster: BookKeeperCluster, tmp_path: Path) -> None:
    chance = Random(SEED)
    number = 0
    counts: Counter[str] = Counter()
    async with running_members(own_cluster, tmp_path) as members:
        rounds = Rounds(own_cluster, members, chance)
        for index, kinds in enumerate(stories(ROUNDS, chance)):
            story = Story(rounds, members, index, chance)
            await story.begin()
            try:
                await story.catches_up()
                await rounds.divide()
                for kind in kinds:
                    print(f"{number} {kind}", flush=True)
                    began_s = time.monotonic()
                    await rounds.happen(kind)
                    mended_s = time.monotonic()
                    await story.catches_up()
                    print(
                        f"{number} {kind}: {mended_s - began_s:.1f} s, works {time.monotonic() - mended_s:.1f} s later",
                        flush=True,
                    )
                    number += 1
                    counts[kind] += 1
                await story.finish()
            finally:
                await story.stop()
            await rounds.lose_two()
            await story.check()
            print(f"story {index}: {story.summary()}", flush=True)
        print(f"{number} rounds: {dict(sorted(counts.items()))}")
        for member in members:
            assert "Traceback" not in member.process.log.read_text(), member.process.log
