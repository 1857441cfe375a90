"""Two broker processes with one ZooKeeper: each enforces what the other was told."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.zookeeper_server import ZooKeeperServer, zookeeper_server

from pybroker.zookeeper import ClientOptions, ServerAddresses, ZooKeeperClient

DEADLINE_S = 30.0


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


def children(server: ZooKeeperServer, path: str) -> list[str]:
    async def read() -> list[str]:
        client = ZooKeeperClient(ServerAddresses.parse(server.address), ClientOptions(session_timeout_ms=10_000))
        await client.start(30)
        try:
            return sorted(await client.children(path))
        finally:
            await client.close()

    return asyncio.run(read())


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
        own_server.start()
        wait_until(lambda: call(one, "GET", "/ready")[0] == 200 and call(two, "GET", "/ready")[0] == 200)
        assert call(two, "POST", "/admin/v2/namespaces/acme/orders/maxTopicsPerNamespace", 5)[0] == 204
        wait_until(lambda: call(one, "GET", "/admin/v2/namespaces/acme/orders/maxTopicsPerNamespace")[1] == "5")


def directory(parent: Path, name: str) -> Path:
    made = parent / name
    made.mkdir()
    return made


def test_bad_stores_are_refused_before_anything_is_written(own_server: ZooKeeperServer, tmp_path: Path) -> None:
    missing = BrokerProcess(directory(tmp_path, "missing"), settings(own_server))
    with pytest.raises(RuntimeError, match="no node /pulsar: prepare it"):
        missing.start()
    make(own_server, "/pulsar")
    with pytest.raises(RuntimeError, match="no cluster: prepare it with `pybroker metadata init"):
        missing.start()
    make(own_server, "/pulsar/admin/clusters/c1", b"{}")
    other = BrokerProcess(directory(tmp_path, "other"), settings(own_server, clusterName="c2"))
    with pytest.raises(RuntimeError, match=r"clusterName is c2, but the metadata store .* has c1"):
        other.start()
    make(own_server, "/pulsar/pybroker/layout", b'{"version": 99}')
    with pytest.raises(RuntimeError, match="version 99, this version of pybroker reads up to 1"):
        missing.start()
    assert children(own_server, "/pulsar") == ["admin", "pybroker"]
    assert children(own_server, "/pulsar/admin") == ["clusters"]


def test_second_broker_with_the_same_id_is_refused(own_server: ZooKeeperServer, tmp_path: Path) -> None:
    make(own_server, "/pulsar/admin/clusters/c1", b"{}")
    one = BrokerProcess(directory(tmp_path, "one"), settings(own_server, metadataStoreSessionTimeoutMillis="10000"))
    one.start()
    assert one.stop() == 0
    one.start()  # with a fixed port now
    two = BrokerProcess(directory(tmp_path, "two"), settings(own_server))
    two.ready = {"broker_port": 0, "http_port": one.ready["http_port"]}
    with pytest.raises(RuntimeError, match=r"another broker has the id 127\.0\.0\.1"):
        two.start()
    one.kill()
    one.start()  # at once, though the session of the killed process still exists
    assert one.stop() == 0
