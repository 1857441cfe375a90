"""A real BookKeeper cluster for tests: one ZooKeeper server and bookies, each a process, from the published jars."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.zookeeper_server import ZooKeeperServer, class_path, free_port

from pybroker.zookeeper import ClientOptions, ServerAddresses, ZooKeeperClient

PROJECT = Path(__file__).parent / "java_projects/bookkeeper.xml"
EXCHANGE = Path(__file__).parent / "LedgerExchange.java"
START_DEADLINE_S = 120.0
_OPENS = [
    word
    for module in (
        "java.base/java.io",
        "java.base/java.nio",
        "java.base/jdk.internal.misc",
        "java.base/jdk.internal.platform",
    )
    for word in ("--add-opens", f"{module}=ALL-UNNAMED")
]
_OPTIONS = [
    *_OPENS,
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Djava.net.preferIPv4Stack=true",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+PerfDisableSharedMem",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
]
ROOT = "/ledgers"


class Bookie:
    """One bookie on 127.0.0.1. Its data and its port stay the same over restarts."""

    def __init__(self, directory: Path, zookeeper: str) -> None:
        self.directory = directory
        self.port = free_port()
        self.bookie_id = f"127.0.0.1:{self.port}"
        self.is_frozen = False
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True)
        values = {
            "bookiePort": self.port,
            "listeningInterface": "lo",
            "allowLoopback": "true",
            "advertisedAddress": "127.0.0.1",
            "journalDirectory": directory / "journal",
            "ledgerDirectories": directory / "ledgers",
            "metadataServiceUri": f"zk+hierarchical://{zookeeper}{ROOT}",
            "zkTimeout": 10_000,
            "httpServerEnabled": "false",
            "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
            "dbStorage_writeCacheMaxSizeMb": 16,
            "dbStorage_readAheadCacheMaxSizeMb": 8,
            "dbStorage_rocksDB_blockCacheSize": 4_194_304,
            "journalSyncData": "true",
            "journalMaxSizeMB": 16,
            "journalPreAllocSizeMB": 2,
            "entryLogFilePreallocationEnabled": "false",
            "nettyMaxFrameSizeBytes": 5_253_120,
            "diskUsageThreshold": "0.99",
            "diskUsageWarnThreshold": "0.98",
            "statisticsEnabled": "false",
        }
        self._settings = directory / "bookie.conf"
        self._settings.write_text("".join(f"{key}={value}\n" for key, value in values.items()))

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start(self, *, waits: bool = True) -> None:
        assert self._process is None, "it runs"
        with (self.directory / "bookie.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    "java",
                    "-Xmx128m",
                    "-XX:MaxDirectMemorySize=192m",
                    *_OPTIONS,
                    "-cp",
                    class_path(PROJECT),
                    "org.apache.bookkeeper.server.Main",
                    "--conf",
                    str(self._settings),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        if waits:
            self.wait()

    def wait(self) -> None:
        """Wait until it listens."""
        deadline = time.monotonic() + START_DEADLINE_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                assert self._process is not None
                assert self._process.poll() is None, f"the bookie ended: {self.log()}"
                assert time.monotonic() < deadline, f"the bookie does not listen: {self.log()}"
                time.sleep(0.05)
            else:
                return

    def log(self) -> str:
        return (self.directory / "bookie.log").read_text(errors="replace")[-3000:]

    def kill(self) -> None:
        """Kill the process at once. Its data stays."""
        process, self._process = self._process, None
        self.is_frozen = False
        if process is not None:
            process.kill()
            process.wait()

    def freeze(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        self.is_frozen = True

    def wake(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
        self.is_frozen = False

    def wipe(self) -> None:
        """Remove the data of a bookie that does not run."""
        assert self._process is None
        for name in ("journal", "ledgers"):
            shutil.rmtree(self.directory / name, ignore_errors=True)


async def make_root(address: str) -> None:
    """Create the nodes without which no bookie starts, as BookKeeper's command `initnewcluster` does."""
    client = ZooKeeperClient(ServerAddresses.parse(address), ClientOptions(session_timeout_ms=10_000))
    await client.start(30)
    layout = b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
    await client.create(f"{ROOT}/LAYOUT", layout, makes_parents=True)
    await client.create(f"{ROOT}/INSTANCEID", b"6ba7b810-9dad-11d1-80b4-00c04fd430c8")
    await client.create(f"{ROOT}/available/readonly", b"", makes_parents=True)
    await client.create(f"{ROOT}/cookies", b"")
    await client.close()


class BookKeeperCluster:
    """Its address for clients is `zookeeper.address` with the root `ROOT`."""

    def __init__(self, directory: Path, bookie_count: int) -> None:
        self.class_path = class_path(PROJECT)
        self.directory = directory
        self.zookeeper = ZooKeeperServer(directory / "zookeeper")
        self.bookies = [Bookie(directory / f"bookie{each}", self.zookeeper.address) for each in range(bookie_count)]

    def start(self) -> None:
        self.zookeeper.start()
        asyncio.run(make_root(self.zookeeper.address))
        for bookie in self.bookies:
            bookie.start(waits=False)
        for bookie in self.bookies:
            bookie.wait()

    def stop(self) -> None:
        for bookie in self.bookies:
            bookie.kill()
        self.zookeeper.kill()

    def exchange(self, *arguments: str) -> list[str]:
        """Run the program of the Java client (LedgerExchange.java), and return the lines that it prints."""
        output = self._java(str(EXCHANGE), f"zk+hierarchical://{self.zookeeper.address}{ROOT}", *arguments)
        return [line[1:] for line in output.splitlines() if line.startswith("=")]

    def _java(self, *arguments: str) -> str:
        command: Sequence[str] = ["java", "-Xmx128m", *_OPTIONS, "-cp", self.class_path, *arguments]
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=START_DEADLINE_S, check=False, env=os.environ.copy()
        )
        assert result.returncode == 0, (result.stdout + result.stderr)[-3000:]
        return result.stdout


@contextmanager
def bookkeeper_cluster(bookie_count: int) -> Iterator[BookKeeperCluster]:
    """Run a cluster for the block, in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="bookkeeper-") as directory:
        cluster = BookKeeperCluster(Path(directory), bookie_count)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()
