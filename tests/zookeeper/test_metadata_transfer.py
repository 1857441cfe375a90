"""`pybroker metadata export`, `import` and `check` between a broker's data directory and a real ZooKeeper."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.earlier_metadata import write_layout_2
from tests.support.zookeeper_server import ZooKeeperServer
from tests.zookeeper.test_two_brokers import call, directory, settings

from pybroker.metadata.transfer.export_file import ExportWriter, Header

_numbers = count()
TENANT = {"allowedClusters": ["c1"], "adminRoles": ["admin"]}
CHANGES: list[tuple[str, str, object]] = [
    ("PUT", "/admin/v2/tenants/acme", TENANT),
    ("PUT", "/admin/v2/namespaces/acme/orders", {"bundles": {"numBundles": 8}}),
    ("POST", "/admin/v2/namespaces/acme/orders/retention", {"retentionTimeInMinutes": 10, "retentionSizeInMB": 9}),
    ("POST", "/admin/v2/namespaces/acme/orders/permissions/reader", ["consume"]),
    ("PUT", "/admin/v2/namespaces/acme/orders/0x00000000_0x20000000/split", None),
    ("PUT", "/admin/v2/persistent/acme/orders/parted/partitions", 3),
    ("POST", "/admin/v2/schemas/acme/orders/parted/schema", {"type": "STRING", "schema": "", "properties": {"a": "b"}}),
    ("POST", "/admin/v2/namespaces/public/default/maxTopicsPerNamespace", 77),
    ("PUT", "/admin/v2/resourcegroups/small", {"publishRateInMsgs": 10}),
    ("POST", "/admin/v2/brokers/configuration/maxTopicsPerNamespace/5", None),
    ("POST", "/admin/v2/clusters/c1/failureDomains/rack", {"brokers": ["b1:8080"]}),
]
QUESTIONS = [
    "/admin/v2/tenants",
    "/admin/v2/tenants/acme",
    "/admin/v2/namespaces/acme",
    "/admin/v2/namespaces/acme/orders",
    "/admin/v2/namespaces/acme/orders/permissions",
    "/admin/v2/namespaces/public/default/maxTopicsPerNamespace",
    "/admin/v2/persistent/acme/orders/partitioned",
    "/admin/v2/persistent/acme/orders/parted/partitions",
    "/admin/v2/schemas/acme/orders/parted/schema",
    "/admin/v2/resourcegroups",
    "/admin/v2/resourcegroups/small",
    "/admin/v2/brokers/configuration/values",
    "/admin/v2/clusters/c1/failureDomains",
]


def metadata(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pybroker", "metadata", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture
def root() -> str:
    return f"/transfer-{next(_numbers)}"


def answers(broker: BrokerProcess) -> dict[str, tuple[int, object]]:
    found = {path: call(broker, "GET", path) for path in QUESTIONS}
    return {path: (status, json.loads(text)) for path, (status, text) in found.items()}


def test_broker_that_moves_to_zookeeper_answers_as_before(server: ZooKeeperServer, root: str, tmp_path: Path) -> None:
    url = f"zk:{server.address}{root}"
    of_one = {"clusterName": "c1", "advertisedAddress": "127.0.0.1"}
    with ExitStack() as stack:
        single = stack.enter_context(BrokerProcess(directory(tmp_path, "single"), of_one).running_well())
        for method, path, body in CHANGES:
            status, text = call(single, method, path, body)
            assert status in (200, 204), (path, status, text)
        before = answers(single)
        assert metadata("export", tmp_path / "early", "--data", single.data).returncode == 1, "the broker runs"
    exported = metadata("export", tmp_path / "first", "--data", single.data, "--cluster", "c1")
    assert exported.returncode == 0, exported.stderr
    assert metadata("check", "--data", single.data, "--cluster", "c1").returncode == 0

    store = ("--metadata-store", url, "--cluster", "c1")
    refused = metadata("import", tmp_path / "first", *store)
    assert refused.returncode == 1
    assert "pybroker metadata init" in refused.stderr
    assert metadata("init", *store).returncode == 0
    assert metadata("import", tmp_path / "first", *store, "--dry-run").returncode == 1, "public/default differs"
    imported = metadata("import", tmp_path / "first", *store, "--replace")
    assert imported.returncode == 0, imported.stderr
    assert metadata("check", *store).returncode == 0
    again = json.loads(metadata("import", tmp_path / "first", *store, "--json").stdout)
    assert (again["created"], again["replaced"], again["different"]) == (0, 0, [])

    config = settings(server, root)
    with BrokerProcess(directory(tmp_path, "shared"), config).running_well() as shared:
        assert answers(shared) == before
        # With a broker that runs on the same tree.
        assert metadata("import", tmp_path / "first", *store, "--replace").returncode == 0
        assert answers(shared) == before
    exported = metadata("export", tmp_path / "second", *store)
    assert exported.returncode == 0, exported.stderr
    back = metadata("import", tmp_path / "second", "--data", tmp_path / "back" / "data", "--cluster", "c1")
    assert back.returncode == 0, back.stderr
    with BrokerProcess(tmp_path / "back", of_one).running_well() as single_again:
        assert answers(single_again) == before


def test_interrupted_import_is_completed_by_another_one(server: ZooKeeperServer, root: str, tmp_path: Path) -> None:
    store = ("--metadata-store", f"zk:{server.address}{root}", "--cluster", "c1")
    assert metadata("init", *store).returncode == 0
    source = many_documents(tmp_path / "many", 3000)
    for delay_s in (0.5, 0.8, 1.1):
        process = subprocess.Popen(
            [sys.executable, "-m", "pybroker", "metadata", "import", str(source), *store], stderr=subprocess.DEVNULL
        )
        time.sleep(delay_s)  # somewhere: the assertions hold for every moment
        process.send_signal(signal.SIGKILL)
        process.wait()
    finished = metadata("import", source, *store, "--json")
    assert finished.returncode == 0, finished.stderr
    result = json.loads(finished.stdout)
    assert result["created"] + result["equal"] == 3000
    assert result["different"] == []
    assert metadata("check", *store).returncode == 0


def many_documents(path: Path, number: int) -> Path:
    with ExportWriter(path, Header("c1", 1)) as writer:
        for each in range(number):
            writer.add(f"/admin/policies/tenant-{each:05}", json.dumps({"allowedClusters": ["c1"]}).encode())
    return path


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("export", "x", "--data", "missing"), "contains no metadata.db"),
        (("import", "missing", "--data", "d"), "missing"),
        (("check", "--metadata-store", "etcd:localhost"), "supported are zk:"),
        (("check", "--metadata-store", "zk:127.0.0.1:1", "--set", "metadataStoreStartTimeoutSeconds=1"), "127.0.0.1:1"),
    ],
)
def test_command_that_cannot_start_says_why(
    arguments: tuple[str, ...], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = metadata(*arguments)
    assert answer.returncode in (1, 2)
    assert text in answer.stderr
    assert list(tmp_path.iterdir()) == []


def test_commands_that_only_read_do_not_convert_a_data_directory(tmp_path: Path) -> None:
    data = directory(tmp_path, "data")
    (data / "LOCK").touch()
    write_layout_2(
        data / "metadata.db", {"/admin/clusters/c1": b"{}", "/admin/tenants/t": b'{"allowedClusters":["c1"]}'}
    )
    before = (data / "metadata.db").read_bytes()
    arguments = ("--cluster", "c1", "--data", data)
    assert metadata("export", tmp_path / "file", *arguments).returncode == 0
    assert "/admin/policies/t" in (tmp_path / "file").read_text()
    assert metadata("check", *arguments).returncode == 0
    assert metadata("import", tmp_path / "file", *arguments, "--dry-run").returncode == 0
    other = metadata("import", tmp_path / "file", "--cluster", "c2", "--data", data)
    assert other.returncode == 1
    assert "was exported from cluster c1, but clusterName is c2" in other.stderr
    assert (data / "metadata.db").read_bytes() == before
