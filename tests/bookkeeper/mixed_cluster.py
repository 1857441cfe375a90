"""Brokers of one cluster, each at its own address, where a Java broker or a pybroker runs."""

from __future__ import annotations

import json
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.bookkeeper.conftest import init_metadata
from tests.support.bookkeeper_cluster import BookKeeperCluster, bookkeeper_cluster
from tests.support.broker_process import BrokerProcess
from tests.support.java_broker import JavaBroker
from tests.support.raw_client import RawClient
from tests.support.zookeeper_server import free_port

from pybroker.wire import pulsar_api_pb2 as pb

CLUSTER = "standalone"
"""The name that the scenarios of tests/differential expect."""
JAVA, OWN = "java", "own"
SESSION_MS = 5_000
SETTINGS = {
    "clusterName": CLUSTER,
    "advertisedAddress": "127.0.0.1",
    "managedLedgerDefaultEnsembleSize": "2",
    "managedLedgerDefaultWriteQuorum": "2",
    "managedLedgerDefaultAckQuorum": "2",
    "metadataStoreSessionTimeoutMillis": str(SESSION_MS),
}
DEADLINE_S = 60.0
MAX_REDIRECTS = 5
BROKERS = "/admin/v2/brokers"
ATTEMPTS = 10
"""Of moves of a bundle of a Java broker: its leader remembers the destination for one lookup, and another client may be first."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)


def send(url: str, method: str, path: str, data: bytes | None = None, content_type: str = "application/json") -> Any:
    """Follow redirects as clients do. Return status, headers and body of the last answer."""
    target = f"{url}{path}"
    for _ in range(MAX_REDIRECTS + 1):
        headers = {} if data is None else {"Content-Type": content_type}
        request = urllib.request.Request(target, data, headers, method=method)
        try:
            with _OPENER.open(request, timeout=60) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                if error.code != 307:
                    return error.code, error.headers, error.read()
                target = error.headers["location"]
    raise AssertionError(f"{method} {path} at {url} is redirected in a circle")


class Place:
    """An address at which a Java broker or a pybroker runs. Each of them keeps its data directory."""

    def __init__(self, directory: Path, name: str, zookeeper: str, settings: Mapping[str, str]) -> None:
        self.name = name
        self.kind = ""
        """`JAVA`, `OWN`, or "" if no broker runs."""
        ports = free_port(), free_port()
        values = {**SETTINGS, **settings}
        self._java = JavaBroker(directory / f"{name}-java", zookeeper, values, ports)
        (directory / f"{name}-own").mkdir()
        self.own = BrokerProcess(
            directory / f"{name}-own", {**values, "ledgerStore": "bookkeeper", "metadataStoreUrl": f"zk:{zookeeper}"}
        )
        self.own.ready = {"broker_port": ports[0], "http_port": ports[1]}
        self.url = self._java.url
        self.http_url = self._java.http_url
        self.broker_id = f"127.0.0.1:{ports[1]}"

    def __repr__(self) -> str:
        return f"{self.kind or 'no'} broker {self.name}"

    def start(self, kind: str) -> None:
        assert not self.kind, "it runs"
        if kind == JAVA:
            self._java.start()
        else:
            self.own.start()
        self.kind = kind

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the broker that runs, by default with an orderly unload of its topics."""
        kind, self.kind = self.kind, ""
        if kind == JAVA:
            self._java.stop(number)
        elif kind == OWN:
            self.own.stop(number)

    def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Return status and JSON, or the text of a refusal. Redirects are followed."""
        status, _, data = send(self.http_url, method, path, None if body is None else json.dumps(body).encode())
        try:
            return status, json.loads(data) if data.strip() else None
        except ValueError:
            return status, data.decode()

    def get(self, path: str) -> Any:
        status, found = self.call("GET", path)
        assert status == 200, f"GET {path} at {self}: {status} {found}"
        return found

    def owner_over_http(self, topic: str) -> str:
        """Return the URL of the topic's owner."""
        return str(self.get(f"/lookup/v2/topic/{topic.replace('://', '/')}")["brokerUrl"])

    def lookup(self, topic: str) -> dict[str, Any]:
        """Return the answer of this broker to a lookup of the protocol, without following a redirect."""
        return _lookup(self.url, topic, is_authoritative=False)

    def owner_over_protocol(self, topic: str) -> str:
        """Follow redirects as clients do, and return the URL of the topic's owner."""
        url, is_authoritative = self.url, False
        for _ in range(MAX_REDIRECTS + 1):
            found = _lookup(url, topic, is_authoritative=is_authoritative)
            if found["response"] == "Connect":
                return str(found["brokerServiceUrl"])
            assert found["response"] == "Redirect", found
            url, is_authoritative = found["brokerServiceUrl"], found.get("authoritative", False)
        raise AssertionError(f"the lookup of {topic} at {self} is redirected in a circle")

    def partitions(self, topic: str) -> int:
        """Return the number that the protocol reports; 0 for a topic that is not partitioned."""
        return int(_request(self.url, pb.BaseCommand.PARTITIONED_METADATA, topic=topic).get("partitions", 0))

    def topics(self, namespace: str) -> list[str]:
        """Return the persistent topics of a namespace, as the protocol reports them."""
        mode = pb.CommandGetTopicsOfNamespace.PERSISTENT
        found = _request(self.url, pb.BaseCommand.GET_TOPICS_OF_NAMESPACE, namespace=namespace, mode=mode)
        return sorted(found["topics"])

    def leader(self) -> str | None:
        """Return the id of the leader that this broker knows; None without one."""
        status, found = self.call("GET", f"{BROKERS}/leaderBroker")
        return str(found["brokerId"]) if status == 200 else None


def _request(url: str, command: pb.BaseCommand.Type, **fields: Any) -> dict[str, Any]:
    client = RawClient(url)
    try:
        client.connect()
        return client.request(command, **fields)
    finally:
        client.close()


def _lookup(url: str, topic: str, *, is_authoritative: bool) -> dict[str, Any]:
    return _request(url, pb.BaseCommand.LOOKUP, topic=topic, authoritative=is_authoritative)


def until(condition: Callable[[], bool], text: Callable[[], str] = lambda: "not in time") -> float:
    """Wait, and return the time that it took in seconds."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + DEADLINE_S, text()
        time.sleep(0.05)
    return time.monotonic() - began


def running(places: Sequence[Place]) -> list[Place]:
    return [each for each in places if each.kind]


def until_all_know_all(places: Sequence[Place]) -> None:
    """Wait until each broker that runs lists exactly those that run."""
    ids = sorted(each.broker_id for each in running(places))
    until(
        lambda: all(sorted(each.get(BROKERS)) == ids for each in running(places)),
        lambda: str({repr(each): each.get(BROKERS) for each in running(places)}),
    )


def require_leader(places: Sequence[Place]) -> None:
    """Wait until all brokers know one leader: a Java broker while one is registered."""
    live = running(places)
    possible = {each.broker_id for each in live if each.kind == JAVA} or {each.broker_id for each in live}

    def known() -> set[str | None]:
        return {each.leader() for each in live}

    until(lambda: len(known()) == 1 and known() <= possible, lambda: f"leaders {known()}, expected one of {possible}")


def bundles_of(place: Place, namespace: str) -> list[str]:
    boundaries = place.get(f"/admin/v2/namespaces/{namespace}/bundles")["boundaries"]
    return [f"{lower}_{upper}" for lower, upper in pairwise(boundaries)]


def transfer(asked: Place, namespace: str, bundle: str, destination: Place) -> None:
    """Move a bundle to a broker. A lookup follows: after an unload by a Java broker, the next lookup gives it its owner."""
    path = f"/admin/v2/namespaces/{namespace}/{bundle}/unload?destinationBroker={destination.broker_id}"
    answer = asked.call("PUT", path)
    assert answer[0] == 204, f"{path} at {asked}: {answer}"


def owner_of_bundle(places: Sequence[Place], namespace: str, bundle: str) -> Place | None:
    """Return the owner at this moment; None without one. Nothing is looked up."""
    for place in places:
        path = f"{BROKERS}/{CLUSTER}/{place.broker_id}/ownedNamespaces"
        status, owned = place.call("GET", path)
        if status == 500 and "LockBusyException" in str(owned) and place.kind == JAVA:
            continue  # A Java broker fails while one of its bundles is one that another broker has acquired first.
        assert status == 200, f"GET {path} at {place}: {status} {owned}"
        if f"{namespace}/{bundle}" in owned:
            return place
    return None


def move(places: Sequence[Place], asked: Place, namespace: str, bundle: str, destination: Place) -> int:
    """Move a bundle while clients look its topics up. Return the number of attempts that were needed."""
    for attempt in range(ATTEMPTS):
        transfer(asked, namespace, bundle, destination)
        until(lambda: owner_of_bundle(places, namespace, bundle) is not None)
        if owner_of_bundle(places, namespace, bundle) is destination:
            return attempt + 1
    raise AssertionError(f"{bundle} does not move to {destination}, asked of {asked}")


def make_namespace(place: Place, name: str, bundles: int) -> None:
    body = {"bundles": {"numBundles": bundles}}
    assert place.call("PUT", f"/admin/v2/namespaces/{name}", body) == (204, None)


def require_lookups(places: Sequence[Place], topic: str) -> Place:
    """Look the topic up at each broker, over both protocols. Return its owner."""
    found = {each.name: (each.owner_over_protocol(topic), each.owner_over_http(topic)) for each in places}
    owners = {url for pair in found.values() for url in pair}
    assert len(owners) == 1, f"{topic}: {found}"
    return next(each for each in places if each.url in owners)


@contextmanager
def places_of(
    cluster: BookKeeperCluster, directory: Path, count: int, settings: Mapping[str, str]
) -> Iterator[list[Place]]:
    """Prepare the metadata of a cluster. Brokers that still run at the end are stopped."""
    zookeeper = cluster.zookeeper.address
    init_metadata(CLUSTER, zookeeper)
    places = [Place(directory, f"b{number}", zookeeper, settings) for number in range(count)]
    try:
        yield places
    finally:
        for place in places:
            place.stop()


@contextmanager
def mixed_places(directory: Path) -> Iterator[list[Place]]:
    """Run a Java broker, which is the leader, and two pybrokers, on a ZooKeeper and bookies of their own."""
    settings = {
        # Bundles move only when the tests move them.
        "loadBalancerSheddingEnabled": "false",
        "loadBalancerAutoBundleSplitEnabled": "false",
        "acknowledgmentAtBatchIndexLevelEnabled": "true",
    }
    with bookkeeper_cluster(3) as cluster, places_of(cluster, directory, 3, settings) as places:
        for place, kind in zip(places, (JAVA, OWN, OWN), strict=True):
            place.start(kind)
        until_all_know_all(places)
        yield places
