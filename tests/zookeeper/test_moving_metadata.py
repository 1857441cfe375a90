"""`pybroker metadata export`, `import` and `check` with real brokers and a real ZooKeeper."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.metadata_calls import CLUSTER, V2, WRITES
from tests.support.moved_documents import MOVED, export_of
from tests.support.rest import call
from tests.support.zookeeper_server import ZooKeeperServer
from tests.vectors.record_metadata import Answers, answer, answers

_numbers = count()
TOPIC = f"{V2}/persistent/public/default/moved"
SCHEMA = {"type": "STRING", "schema": "", "properties": {"a": "b"}}
READS = (
    f"{V2}/schemas/public/default/moved/schemas",
    f"{TOPIC}/maxMessageSize",
    f"{V2}/brokers/configuration/values",
    f"{V2}/tenants",
)


def metadata(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pybroker", "metadata", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def done(*arguments: str | Path) -> str:
    result = metadata(*arguments)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def refused(*arguments: str | Path) -> str:
    result = metadata(*arguments)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    return result.stderr


@pytest.fixture
def url(server: ZooKeeperServer) -> str:
    return f"zk:{server.address}/moving-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def initialized(url: str) -> str:
    done("init", "--cluster", "c1", "--metadata-store", url)
    return url


def all_answers(broker: BrokerProcess) -> Answers:
    return {**answers(broker.http_url), **{path: answer(broker.http_url, path) for path in READS}}


def require_equal(found: Any, expected: Any) -> None:
    different = {path: (found[path], expected[path]) for path in expected if found[path] != expected[path]}
    assert not different, json.dumps(different, indent=2)


def test_broker_moves_to_zookeeper_and_back(url: str, tmp_path: Path) -> None:
    store = ("--cluster", CLUSTER, "--metadata-store", url)
    file, again = tmp_path / "first.jsonl", tmp_path / "again.jsonl"
    broker = BrokerProcess(tmp_path, {"advertisedAddress": "127.0.0.1"})
    data = ("--cluster", CLUSTER, "--data", broker.data)
    with broker.running_well():
        for write in WRITES:
            assert call(broker.http_url + write.path, write.method, body=write.body).status in (200, 204), write
        assert call(broker.http_url + TOPIC, "PUT").status == 204
        assert call(f"{broker.http_url}{V2}/schemas/public/default/moved/schema", "POST", body=SCHEMA).status == 200
        assert call(f"{broker.http_url}{TOPIC}/maxMessageSize", "POST", body=77).status == 204
        before = all_answers(broker)
        assert "Stop the broker first" in refused("export", *data, "--to", file)
        assert not file.exists()
        addresses = ("--web-service-url", broker.http_url, "--broker-service-url", broker.url)
    database = (broker.data / "metadata.db").read_bytes()
    done("export", *data, "--to", file)
    assert (broker.data / "metadata.db").read_bytes() == database
    assert "prepare it for a cluster with `pybroker metadata init`" in refused("import", file, *store)
    done("init", *store, *addresses)
    assert "create" in done("import", file, *store, "--dry-run")
    assert "create" in done("import", file, *store, "--dry-run")  # the former one changed nothing
    assert "Done:" in done("import", file, *store)
    assert "create" not in done("import", file, *store)
    done("export", *store, "--to", again)
    # Besides, the tree has the partitions of the coordinators, which `metadata init` creates.
    documents = [json.loads(line) for line in again.read_text().splitlines()[:-1]]
    documents = [line for line in documents if "transaction_coordinator_assign" not in line.get("path", "")]
    assert documents == [json.loads(line) for line in file.read_text().splitlines()[:-1]]
    checked = metadata("check", *store, "--json").stdout.splitlines()
    assert json.loads(checked[-1])["problems"] == len([line for line in checked if '"problem"' in line])

    broker.settings |= {"metadataStoreUrl": url, "ledgerStore": "local"}
    with broker.running_well():
        require_equal(all_answers(broker), before)
        assert "create" not in done("import", file, *store)  # while the broker runs
        assert call(f"{broker.http_url}{V2}/namespaces/public/later", "PUT").status == 204
        assert call(f"{broker.http_url}{TOPIC}/maxMessageSize", "POST", body=99).status == 204
        after = all_answers(broker)
        done("export", *store, "--to", again)
        assert "Give --replace to replace them" in refused("import", file, *store)
        assert all_answers(broker) == after

    del broker.settings["metadataStoreUrl"]
    assert "differ from the file" in refused("import", again, *data)
    done("import", again, *data, "--replace", "--prune")
    with broker.running_well():
        require_equal(all_answers(broker), after)
        assert call(f"{broker.http_url}{V2}/namespaces/public/later").status == 200


def test_import_that_is_killed_again_and_again_is_completed(initialized: str, tmp_path: Path) -> None:
    topics = {f"/admin/partitioned-topics/t/n/persistent/topic-{number}": b'{"partitions":2}' for number in range(3000)}
    file = export_of(MOVED | topics, tmp_path / "file")
    store = ("--cluster", "c1", "--metadata-store", initialized)
    command = [sys.executable, "-m", "pybroker", "metadata", "import", str(file), *store]
    for delay_s in (0.6, 0.9, 1.2):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(delay_s)  # each moment is right, also one after its end
        process.kill()
        process.wait()
    done("import", file, *store)
    numbers = json.loads(done("import", file, *store, "--json").splitlines()[-1])
    assert numbers == {"verified": len(MOVED) + len(topics) - 1, "kept": 1}


def test_values_near_the_limit_of_zookeeper_are_moved(initialized: str, tmp_path: Path) -> None:
    path = "/pybroker/topic-policies/t/n/persistent/large-"
    large = {f"{path}{number}": b'"' + b"x" * (1_044_000) + b'"' for number in range(3)}
    store = ("--cluster", "c1", "--metadata-store", initialized)
    done("import", export_of(large, tmp_path / "file"), *store)
    done("export", *store, "--to", tmp_path / "again")
    assert all(name in (tmp_path / "again").read_text() for name in large)
    too_large = export_of({path + "z": b"x" * 1_045_000}, tmp_path / "file")
    assert "has 1045000 bytes, and ZooKeeper stores up to" in refused("import", too_large, *store)


def test_wrong_files_clusters_and_stores_are_refused_before_anything_is_written(
    initialized: str, tmp_path: Path
) -> None:
    file = export_of(MOVED, tmp_path / "file")
    store = ("--cluster", "c1", "--metadata-store", initialized)
    done("export", *store, "--to", tmp_path / "before")
    (tmp_path / "cut").write_bytes(file.read_bytes()[:-100])
    assert "cut cannot be imported: the file is" in refused("import", tmp_path / "cut", *store)
    (tmp_path / "newer").write_text('{"format":"pybroker-metadata","version":9,"cluster":"c1"}\n')
    assert "reads up to 1: use the newer version" in refused("import", tmp_path / "newer", *store)
    assert "No such file" in refused("import", tmp_path / "missing", *store)
    other = ("--cluster", "c2", "--metadata-store", initialized)
    assert "its cluster is c1, and clusterName is c2" in refused("import", file, *other)
    assert "clusterName is c2, but the metadata store" in refused("export", *other, "--to", tmp_path / "x")
    unreachable = ("--metadata-store", "zk:127.0.0.1:1", "--set", "metadataStoreStartTimeoutSeconds=1")
    for arguments in (("import", file), ("export", "--to", tmp_path / "x"), ("check",)):
        assert "no session with ZooKeeper" in refused(*arguments, "--cluster", "c1", *unreachable)
    assert "is not a data directory" in refused("import", file, "--cluster", "c1", "--data", tmp_path / "nowhere")
    assert not (tmp_path / "x").exists()
    assert not (tmp_path / "nowhere").exists()
    done("export", *store, "--to", tmp_path / "after")
    assert (tmp_path / "after").read_bytes() == (tmp_path / "before").read_bytes()


def test_store_without_permission_is_refused(url: str, tmp_path: Path) -> None:
    owner = ("--set", "metadataStoreDigestCredentials=u:p", "--set", "metadataStoreAclCreatorOnly=true")
    store = ("--cluster", "c1", "--metadata-store", url)
    done("init", *store, *owner)
    file = export_of(MOVED, tmp_path / "file")
    for arguments in (("import", file), ("export", "--to", tmp_path / "x"), ("check",)):
        assert "not permitted" in refused(*arguments, *store)
    done("import", file, *store, *owner)
