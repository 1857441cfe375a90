"""`pybroker metadata init` against a real ZooKeeper."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from itertools import count

import pytest
from tests.support.zookeeper_server import ZooKeeperServer

from pybroker.metadata.shared_metadata import LAYOUT_PATH
from pybroker.zookeeper import ClientOptions, ServerAddresses, ZooKeeperClient

_numbers = count()


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pybroker", "metadata", "init", *arguments]


def init(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, check=False, timeout=120)


def content(server: ZooKeeperServer, root: str) -> dict[str, bytes]:
    """Return all values below `root`."""

    async def read() -> dict[str, bytes]:
        client = ZooKeeperClient(ServerAddresses.parse(server.address + root), ClientOptions(session_timeout_ms=10_000))
        await client.start(30)
        found: dict[str, bytes] = {}
        paths = ["/"]
        while paths:
            path = paths.pop()
            if path != "/":
                found[path] = (await client.get(path))[0]
            paths += [f"{path.rstrip('/')}/{name}" for name in await client.children(path)]
        await client.close()
        return found

    return asyncio.run(read())


@pytest.fixture
def root() -> str:
    return f"/init-{next(_numbers)}/pulsar"


def test_init_writes_what_brokers_and_bookies_need_and_can_be_repeated(server: ZooKeeperServer, root: str) -> None:
    url = f"zk:{server.address}{root}"
    first = init("--cluster", "c1", "--metadata-store", url, "--web-service-url", "http://h:8080")
    assert first.returncode == 0, first.stderr
    assert "cluster c1: created" in first.stdout
    written = content(server, root)
    assert json.loads(written["/admin/clusters/c1"])["serviceUrl"] == "http://h:8080"
    assert json.loads(written["/admin/policies/public"])["allowedClusters"] == ["c1"]
    assert json.loads(written["/admin/policies/public/default"])["replication_clusters"] == ["c1"]
    assert "/admin/policies/pulsar/system" in written
    assert written["/ledgers/LAYOUT"].startswith(b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory")
    assert len(written["/ledgers/INSTANCEID"]) == 36
    assert written["/ledgers/available/readonly"] == b""
    assert json.loads(written[LAYOUT_PATH]) == {"version": 1}
    again = init("--cluster", "c1", "--metadata-store", url)
    assert again.returncode == 0
    assert "created" not in again.stdout
    assert content(server, root) == written
    other = init("--cluster", "c2", "--metadata-store", url)
    assert other.returncode == 0
    assert json.loads(content(server, root)["/admin/policies/public"])["allowedClusters"] == ["c1", "c2"]


def test_two_inits_at_the_same_time_both_succeed(server: ZooKeeperServer, root: str) -> None:
    arguments = command("--cluster", "c1", "--metadata-store", f"zk:{server.address}{root}")
    running = [subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    outputs = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0, 0], outputs
    assert "/admin/policies/pulsar/system" in content(server, root)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ([], 2, "no metadata store"),
        (["--metadata-store", "etcd:h:1"], 2, "metadataStoreUrl cannot be 'etcd:h:1'"),
        (["--metadata-store", "zk:h:x"], 2, "is not a server address"),
        (["--metadata-store", "zk:h:1", "--cluster", "a b"], 2, "clusterName cannot be 'a b'"),
        (
            ["--metadata-store", "zk:127.0.0.1:1", "--set", "metadataStoreStartTimeoutSeconds=1"],
            1,
            "no session with ZooKeeper at 127.0.0.1:1 within 1 s",
        ),
    ],
)
def test_wrong_arguments_are_told_in_one_line(arguments: list[str], code: int, text: str) -> None:
    result = init(*arguments)
    assert result.returncode == code
    assert text in result.stderr
    assert "Traceback" not in result.stderr
