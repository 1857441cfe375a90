"""A start that the shared store refuses leaves the data directory as it is: no conversion, no new value."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.earlier_metadata import write_layout_2
from tests.support.zookeeper_server import ZooKeeperServer
from tests.zookeeper.conftest import make_chroot

from pybroker.metadata.broker_identity import BROKERS_PATH
from pybroker.metadata.shared_metadata import LAYOUT_PATH
from pybroker.zookeeper import ClientOptions, ServerAddresses, ZooKeeperClient

OLD = {"/admin/tenants/t": b'{"adminRoles":[],"allowedClusters":["c1"]}'}


@pytest.fixture
async def client(server: ZooKeeperServer, tmp_path: Path) -> ZooKeeperClient:
    addresses = ServerAddresses.parse(f"{server.address}/refused-{hashlib.sha256(bytes(tmp_path)).hexdigest()[:16]}")
    await make_chroot(addresses)
    client = ZooKeeperClient(addresses, ClientOptions(session_timeout_ms=10_000))
    await client.start(30)
    await client.create("/admin/clusters/c1", b"{}", makes_parents=True)
    return client


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("cluster", "clusterName is other, but the metadata store"),
        ("layout", "have version 99, but this version of pybroker reads only versions up to 1"),
        ("identity", "another broker has the id 127.0.0.1:1"),
        ("chroot", "prepare it for a cluster with `pybroker metadata init`"),
    ],
)
async def test_refused_start_does_not_convert_the_data_directory(
    client: ZooKeeperClient, tmp_path: Path, case: str, text: str
) -> None:
    broker = BrokerProcess(
        tmp_path,
        {
            "metadataStoreUrl": f"zk:{client.addresses}{'/missing' if case == 'chroot' else ''}",
            "ledgerStore": "local",
            "clusterName": "other" if case == "cluster" else "c1",
            "advertisedAddress": "127.0.0.1",
        },
    )
    if case == "layout":
        await client.create(LAYOUT_PATH, b'{"version":99}', makes_parents=True)
    if case == "identity":
        broker.ready = {"http_port": 1}  # never bound: the id is refused before
        holder = json.dumps({"directoryId": "another"}).encode()
        await client.create(f"{BROKERS_PATH}/127.0.0.1:1", holder, makes_parents=True)
    broker.data.mkdir(mode=0o700)
    database = broker.data / "metadata.db"
    write_layout_2(database, OLD)
    before = database.read_bytes()
    with pytest.raises(RuntimeError, match=text):
        broker.start()
    assert database.read_bytes() == before
    assert not (broker.data / "metadata.end").exists()
    assert "metadata.converted" not in broker.log.read_text()
    await client.close()
