"""Two broker processes with one ZooKeeper: each enforces what the other was told."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import RawClient
from tests.support.zookeeper_server import ZooKeeperServer, free_port, zookeeper_server

from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.zookeeper import ClientOptions, ServerAddresses, ZooKeeperClient

DEADLINE_S = 30.0
LOADED = "acme/orders/loaded"


def settings(server: ZooKeeperServer, chroot: str = "/pulsar", **more: str) -> dict[str, str]:
    return {
        "metadataStoreUrl": f"zk:{server.address}{chroot}",
        "ledgerStore": "local",
        "clusterName": "c1",
        "advertisedAddress": "127.0.0.1",
        "metadataStoreSessionTimeoutMillis": "2000",
        **more,
    }


def make(server: ZooKeeperServer, path: str, value: bytes = b"") -> None:
    """Create a node and its parents. With a loop of its own: starting brokers would block the test's."""
    asyncio.run(_make(server, path, value))


async def _make(server: ZooKeeperServer, path: str, value: bytes) -> None:
    client = ZooKeeperClient(ServerAddresses.parse(server.address), ClientOptions(session_timeout_ms=10_000))
    await client.start(30)
    await client.create(path, value, makes_parents=True)
    await client.close()


@pytest.fixture
def own_server() -> Iterator[ZooKeeperServer]:
    with zookeeper_server() as server:
        yield server


def call(broker: BrokerProcess, method: str, path: str, body: object = None) -> tuple[int, str]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{broker.http_url}{path}", data, method=method)
    request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_policy_changed_at_one_broker_is_enforced_at_the_other(own_server: ZooKeeperServer, tmp_path: Path) -> None:
    make(own_server, "/pulsar/admin/clusters/c1", b"{}")
    with ExitStack() as stack:
        one = stack.enter_context(BrokerProcess(directory(tmp_path, "one"), settings(own_server)).running_well())
        two = stack.enter_context(BrokerProcess(directory(tmp_path, "two"), settings(own_server)).running_well())
        tenant = {"allowedClusters": ["c1"], "adminRoles": []}
        assert call(one, "PUT", "/admin/v2/tenants/acme", tenant)[0] == 204
        wait_until(lambda: call(two, "PUT", "/admin/v2/namespaces/acme/orders")[0] in (204, 409))
        wait_until(lambda: call(one, "GET", "/admin/v2/namespaces/acme/orders")[0] == 200)
        require_enforced_producer_limit(one, two)
        assert call(two, "DELETE", f"/admin/v2/persistent/{LOADED}?force=true")[0] == 204
        assert call(one, "POST", "/admin/v2/namespaces/acme/orders/maxTopicsPerNamespace", 1)[0] == 204
        wait_until(lambda: call(two, "GET", "/admin/v2/namespaces/acme/orders/maxTopicsPerNamespace")[1] == "1")
        assert call(two, "PUT", "/admin/v2/persistent/acme/orders/first")[0] == 204
        assert "number of topics" in call(two, "PUT", "/admin/v2/persistent/acme/orders/second")[1]
        assert call(one, "PUT", "/admin/v2/persistent/acme/orders/parted/partitions", 2)[0] in (204, 412)
        # A killed server: loaded topics and the caches go on, and the brokers say what is wrong.
        own_server.kill()
        wait_until(lambda: call(one, "GET", "/ready")[0] == 503)
        assert "metadata store" in call(one, "GET", "/ready")[1]
        assert call(two, "GET", "/admin/v2/namespaces/acme/orders/maxTopicsPerNamespace") == (200, "1")
        explained = json.loads(call(one, "GET", "/admin/v2/persistent/acme/orders/first/explain")[1])
        assert [finding["code"] for finding in explained["findings"]] == ["metadata-unreachable"]
        own_server.start()
        wait_until(lambda: call(one, "GET", "/ready")[0] == 200 and call(two, "GET", "/ready")[0] == 200)
        assert call(two, "POST", "/admin/v2/namespaces/acme/orders/maxTopicsPerNamespace", 5)[0] == 204
        wait_until(lambda: call(one, "GET", "/admin/v2/namespaces/acme/orders/maxTopicsPerNamespace")[1] == "5")


def require_enforced_producer_limit(one: BrokerProcess, two: BrokerProcess) -> None:
    """Change the limit of producers at `one` several times: each time `two` enforces it for a topic that it has loaded."""
    topic, producer_ids = f"persistent://{LOADED}", count(2)
    with closing(RawClient(two.url)) as client:
        client.connect()
        assert client.open_producer(topic, 1)["type"] == "PRODUCER_SUCCESS"

        def is_second_accepted() -> bool:
            producer_id = next(producer_ids)
            answer = client.request(pb.BaseCommand.PRODUCER, topic=topic, producer_id=producer_id)
            if answer["type"] == "PRODUCER_SUCCESS":
                assert client.request(pb.BaseCommand.CLOSE_PRODUCER, producer_id=producer_id)["type"] == "SUCCESS"
                return True
            assert answer["error"] == "ProducerBusy", answer
            return False

        assert is_second_accepted()
        for limit in (1, 2, 1, 0):
            assert call(one, "POST", "/admin/v2/namespaces/acme/orders/maxProducersPerTopic", limit)[0] == 204
            wait_until(lambda limit=limit: is_second_accepted() == (limit != 1))  # type: ignore[misc]


def directory(parent: Path, name: str) -> Path:
    made = parent / name
    made.mkdir()
    return made


def test_second_broker_with_the_same_id_is_refused(own_server: ZooKeeperServer, tmp_path: Path) -> None:
    make(own_server, "/pulsar/admin/clusters/c1", b"{}")
    one = BrokerProcess(directory(tmp_path, "one"), settings(own_server, metadataStoreSessionTimeoutMillis="10000"))
    one.ready = {"broker_port": 0, "http_port": free_port()}  # the id of a broker needs a fixed port
    one.start()
    two = BrokerProcess(directory(tmp_path, "two"), settings(own_server))
    two.ready = {"broker_port": 0, "http_port": one.ready["http_port"]}
    with pytest.raises(RuntimeError, match=r"another broker has the id 127\.0\.0\.1"):
        two.start()
    one.kill()
    one.start()  # at once, though the session of the killed process still exists
    assert one.stop() == 0
