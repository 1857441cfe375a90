"""A rolling restart of a cluster under load, on modelled servers: clients continue, and nothing is lost."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pulsar
from tests.protocol.test_cluster import ADMIN, TIMEOUT_MS, TOPIC, look_up, rest
from tests.support.modelled_cluster import ClusterBroker, ModelledCluster, modelled_cluster, run_on_uvloop
from tests.support.waiting import until

from pybroker.cluster.ownership.namespace_bundle import NamespaceBundle

PARTITIONS = 6
KEYS = 7
RECEIVE_MS = 200
TYPES = {
    "shared": pulsar.ConsumerType.Shared,
    "keyed": pulsar.ConsumerType.KeyShared,
    "failover": pulsar.ConsumerType.Failover,
}


def test_rolling_restart_loses_nothing_and_keeps_all_clients() -> None:
    run_on_uvloop(_rolling_restart())


class _Load:
    """A publisher and one consumer for each type of subscription, in threads, until `stop`."""

    def __init__(self, cluster: ModelledCluster) -> None:
        urls = ",".join(each.registered.broker_service_url for each in cluster.brokers).replace(",pulsar://", ",")
        self._client = pulsar.Client(
            urls, operation_timeout_seconds=30, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        self.receipted: list[str] = []
        self.received: dict[str, list[str]] = {name: [] for name in TYPES}
        self._stop = threading.Event()
        self._problems: list[BaseException] = []

    def start(self) -> None:
        consumers = {
            name: self._client.subscribe(TOPIC, name, consumer_type=kind, consumer_name=f"c-{name}")
            for name, kind in TYPES.items()
        }
        producer = self._client.create_producer(TOPIC, send_timeout_millis=0, batching_enabled=False)
        threads = [(self._publish, (producer,)), *((self._consume, item) for item in consumers.items())]
        self._threads = [threading.Thread(target=self._guarded, args=(work, *given)) for work, given in threads]
        for thread in self._threads:
            thread.start()

    def _guarded(self, work: object, *given: object) -> None:
        try:
            work(*given)  # type: ignore[operator]
        except BaseException as error:  # noqa: BLE001  (raised by `end`)
            self._problems.append(error)

    def _publish(self, producer: pulsar.Producer) -> None:
        number = 0
        while not self._stop.wait(0.005):
            text = f"{number % KEYS}/{number}"
            producer.send(text.encode(), partition_key=text[0])
            self.receipted.append(text)
            number += 1

    def _consume(self, name: str, consumer: pulsar.Consumer) -> None:
        silent_ms = 0
        while not self._has_all(name):
            try:
                message = consumer.receive(RECEIVE_MS)
            except pulsar.Timeout:
                silent_ms += RECEIVE_MS
                assert silent_ms < TIMEOUT_MS, f"consumer {name} is stuck"
                continue
            silent_ms = 0
            self.received[name].append(message.data().decode())
            consumer.acknowledge(message)

    def _has_all(self, name: str) -> bool:
        is_complete = self._stop.is_set() and not self._threads[0].is_alive()
        return is_complete and set(self.receipted) <= set(self.received[name])

    def has_receipts(self, count: int) -> bool:
        return len(self.receipted) >= count

    def end(self) -> None:
        self._stop.set()
        self._threads[0].join()
        for thread in self._threads[1:]:
            thread.join()
        self._client.close()
        assert self._problems == []


async def _rolling_restart() -> None:
    async with modelled_cluster(3, has_membership=True) as cluster:
        assert await rest(cluster.brokers[0], "PUT", f"{ADMIN}/partitions", PARTITIONS) == (204, None)
        load = _Load(cluster)
        await asyncio.to_thread(load.start)
        for index in range(3):
            await until(partial(load.has_receipts, len(load.receipted) + 20), pause_s=0.01)
            victim = cluster.brokers[index]
            had = {str(each) for each in _bundles(victim)}
            assert had, "each broker has a part of the topics"
            restarted = await cluster.restart(index)
            owners = {str(bundle) for each in cluster.brokers if each is not restarted for bundle in _bundles(each)}
            assert had <= owners, "the bundles have been given to the other brokers"
            await until(lambda: all(len(each.membership.brokers()) == 3 for each in cluster.brokers if each.membership))
            await _give_back(cluster, index)
        await asyncio.to_thread(load.end)
        assert len(load.receipted) == len(set(load.receipted)) > 60
        for name, found in load.received.items():
            assert set(found) == set(load.receipted), name
            if name != "shared":
                for key in range(KEYS):
                    numbers = [int(text[2:]) for text in dict.fromkeys(found) if text.startswith(f"{key}/")]
                    assert numbers == sorted(numbers), f"the order of key {key} is broken at {name}"


def _bundles(broker: ClusterBroker) -> list[NamespaceBundle]:
    assert broker.service.ownership is not None
    return [each for each in broker.service.ownership.shared_bundles() if each.namespace.tenant == "public"]


async def _give_back(cluster: ModelledCluster, index: int) -> None:
    """Move bundles to the next broker that is restarted, and to the one that was, so that each has some."""
    for offset in (0, 1, 2):
        broker = cluster.brokers[(index + offset) % 3]
        if _bundles(broker):
            continue
        giver = max(cluster.brokers, key=lambda each: len(_bundles(each)))
        bundle = _bundles(giver)[0].range
        path = f"/admin/v2/namespaces/public/default/{bundle}/unload?destinationBroker={broker.registered.broker_id}"
        assert await rest(giver, "PUT", path) == (204, None)


def test_last_broker_stops_without_handover_and_others_try_the_next_broker() -> None:
    run_on_uvloop(_refused_handover())


async def _refused_handover() -> None:
    async with modelled_cluster(bundle_handover_leader_timeout_ms=50) as cluster:
        one, two = cluster.brokers
        cluster.chosen = 1
        await look_up(one, TOPIC, authoritative=True)
        assert await rest(one, "PUT", ADMIN) == (204, None)
        assert _bundles(one)
        # The leader is this broker itself, and no other one was elected: the other broker is asked.
        await one.service.hand_over()
        assert not _bundles(one)
        assert len(_bundles(two)) == 1
        assert one.service.unready_reason() == "the broker is stopping and hands its bundles over"
        # It acquires nothing any more.
        found = await look_up(one, "persistent://public/default/other", authoritative=True)
        assert found["response"] in ("Connect", "Failed")
        assert not _bundles(one)
        # Without another broker, everything stays until the end.
        registry = two.service.ownership
        assert registry is not None
        registry.registry.brokers().clear()  # type: ignore[attr-defined]
        await two.service.hand_over()
        assert len(_bundles(two)) == 1
