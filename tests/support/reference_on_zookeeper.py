"""The reference broker with its metadata in a real ZooKeeper: one Java process with ZooKeeper, one bookie and the broker.

The jars are those of `baseline setup`, like in `java.py`. Needs Java 17.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.zookeeper_server import ZooKeeperServer, free_port

from pybroker.zookeeper import ClientOptions, ServerAddresses, ZooKeeperClient

START_DEADLINE_S = 180.0
CONNECT_DEADLINE_S = 30.0
SETTINGS = {
    "allowAutoTopicCreationType": "non-partitioned",
    "bindAddress": "127.0.0.1",
    "advertisedAddress": "127.0.0.1",
    "clusterName": "standalone",
    "managedLedgerDefaultEnsembleSize": "1",
    "managedLedgerDefaultWriteQuorum": "1",
    "managedLedgerDefaultAckQuorum": "1",
    "loadBalancerEnabled": "false",
    "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
    "diskUsageThreshold": "0.99",
    "diskUsageWarnThreshold": "0.99",
    "allowLoopback": "true",
    "listeningInterface": "lo",
}
_MODULES = (
    "java.base/java.io java.base/java.util.zip java.base/java.nio java.base/jdk.internal.misc java.base/sun.net"
    " java.management/sun.management java.base/jdk.internal.platform"
)
_BOOKKEEPER = "org.apache.pulsar.metadata.bookkeeper.PulsarMetadata"
_OPTIONS = (
    "-Xms200m -Xmx400m -XX:MaxDirectMemorySize=400m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:+PerfDisableSharedMem"
    " -Dlog4j2.is.webapp=false -Dlog4j2.level=warn -Dio.netty.tryReflectionSetAccessible=true"
    " -Djava.net.preferIPv4Stack=true"
    f" -Dbookkeeper.metadata.bookie.drivers={_BOOKKEEPER}BookieDriver"
    f" -Dbookkeeper.metadata.client.drivers={_BOOKKEEPER}ClientDriver"
)


@dataclass(frozen=True)
class ReferenceOnZooKeeper:
    """The addresses."""

    http_url: str
    service_url: str
    zookeeper: str


@contextmanager
def reference_on_zookeeper(
    directory: Path, documents: Mapping[str, str] | None = None
) -> Iterator[ReferenceOnZooKeeper]:
    """Start a reference broker for the block, on a ZooKeeper that contains `documents`: text by path.

    Skips the test with the reason if that is not possible.
    """
    jars = Path(os.environ.get("PULSAR_BASELINE_HOME", Path.home() / ".cache/pulsar-baseline")) / "server/cp.txt"
    if shutil.which("java") is None:
        pytest.skip("the reference broker needs Java 17 on the PATH")
    if not jars.exists():
        pytest.skip(
            f"the reference broker's jars are not in {jars.parent}: run `baseline setup`, or set PULSAR_BASELINE_HOME"
        )
    if documents is not None:
        _prepare(directory / "zookeeper", documents)
    broker, web, zookeeper, bookie = (free_port() for _ in range(4))
    settings = {**SETTINGS, "brokerServicePort": str(broker), "webServicePort": str(web)}
    configuration = directory / "standalone.conf"
    configuration.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    opens = [argument for module in _MODULES.split() for argument in ("--add-opens", f"{module}=ALL-UNNAMED")]
    main = [
        "org.apache.pulsar.PulsarStandaloneStarter",
        "--config",
        str(configuration),
        "-nfw",
        "-nss",
        "-a",
        "127.0.0.1",
    ]
    places = ["--zookeeper-dir", str(directory / "zookeeper/data"), "--bookkeeper-dir", str(directory / "bookkeeper")]
    ports = ["--zookeeper-port", str(zookeeper), "--bookkeeper-port", str(bookie)]
    command = ["java", *_OPTIONS.split(), *opens, "-cp", jars.read_text().strip(), *main, *places, *ports]
    found = ReferenceOnZooKeeper(f"http://127.0.0.1:{web}", f"pulsar://127.0.0.1:{broker}", f"127.0.0.1:{zookeeper}")
    log_path = directory / "reference.log"
    with log_path.open("wb") as log:
        environment = {**os.environ, "PULSAR_STANDALONE_USE_ZOOKEEPER": "1"}
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=directory
        )
    try:
        _await_health(found, process, log_path)
        yield found
    finally:
        process.kill()
        process.wait()


def _await_health(found: ReferenceOnZooKeeper, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_DEADLINE_S
    while True:
        assert process.poll() is None, f"the reference broker ended: {log.read_text(errors='replace')[-3000:]}"
        assert time.monotonic() < deadline, (
            f"the reference broker does not serve: {log.read_text(errors='replace')[-3000:]}"
        )
        try:
            # The start creates this namespace last.
            if "public/default" in json.loads(
                urllib.request.urlopen(f"{found.http_url}/admin/v2/namespaces/public", timeout=20).read()
            ):
                return
        except (OSError, urllib.error.URLError):
            time.sleep(0.1)


def _prepare(directory: Path, documents: Mapping[str, str]) -> None:
    """Write `documents` with a ZooKeeper of their own, which stops before the reference broker's starts."""
    server = ZooKeeperServer(directory)
    server.start()
    try:
        asyncio.run(_write(server.address, documents))
    finally:
        server.kill()


async def _write(address: str, documents: Mapping[str, str]) -> None:
    client = ZooKeeperClient(ServerAddresses.parse(address), ClientOptions())
    await client.start(CONNECT_DEADLINE_S)
    for path, text in sorted(documents.items()):
        value = text.encode()
        if await client.exists(path) is None:
            await client.create(path, value, makes_parents=True)
        else:
            await client.set(path, value)
    await client.close()


def zookeeper_documents(address: str, roots: tuple[str, ...]) -> dict[str, str]:
    """Return the values below `roots`, by path. Nodes without a value are not returned."""

    async def all_below() -> dict[str, str]:
        client = ZooKeeperClient(ServerAddresses.parse(address), ClientOptions())
        await client.start(CONNECT_DEADLINE_S)
        found: dict[str, str] = {}
        waiting = list(roots)
        while waiting:
            path = waiting.pop()
            if await client.exists(path) is None:
                continue
            value, _ = await client.get(path)
            if value:
                found[path] = value.decode()
            waiting += [f"{path}/{name}" for name in await client.children(path)]
        await client.close()
        return dict(sorted(found.items()))

    return asyncio.run(all_below())
