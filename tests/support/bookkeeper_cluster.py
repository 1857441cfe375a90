"""A real BookKeeper cluster for tests: one ZooKeeper server and bookies, each a process, from the published jars."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.small_disk import SmallDisk
from tests.support.zookeeper_server import ZooKeeperServer, class_path, free_port

from pybroker.bookkeeper.ledger_paths import MAX_LEDGER_ID
from pybroker.bookkeeper.protocol.frames import read_request
from pybroker.zookeeper import ClientOptions, ServerAddresses, ZooKeeperClient

PROJECT = Path(__file__).parent / "java_projects/bookkeeper.xml"
EXCHANGE = Path(__file__).parent / "LedgerExchange.java"
START_DEADLINE_S = 120.0
JAVA_DEADLINE_S = 600.0
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
_LOG_OPTIONS = ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
_OPTIONS = [
    *_OPENS,
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Djava.net.preferIPv4Stack=true",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+PerfDisableSharedMem",
    *_LOG_OPTIONS,
]
ROOT = "/ledgers"


_SMALL_DISK_SETTINGS = {
    "logSizeLimit": 8 << 20,
    "minUsableSizeForEntryLogCreation": 1 << 20,
    "minUsableSizeForIndexFileCreation": 1 << 20,
    "minUsableSizeForHighPriorityWrites": 1 << 20,
    "journalMaxBackups": 1,
    "journalMaxSizeMB": 4,
    "gcWaitTime": 2000,
    "diskCheckInterval": 300,
    "diskUsageThreshold": "0.8",
    "diskUsageWarnThreshold": "0.75",
    "diskUsageLwmThreshold": "0.78",
    "isForceGCAllowWhenNoSpace": "true",
}


class Bookie:
    """One bookie on 127.0.0.1. Its data and its port stay the same over restarts.

    `small_disk_mib`: the size of a disk of its own, which a test can fill. The bookie becomes read-only at 80 %.
    Without `port`, a free port is used.
    """

    def __init__(
        self,
        directory: Path,
        zookeeper: str,
        settings: Mapping[str, object] | None = None,
        small_disk_mib: int = 0,
        java_options: Sequence[str] = (),
        port: int = 0,
    ) -> None:
        self._java_options = java_options
        self.directory = directory
        self.disk = SmallDisk(directory / "disk", small_disk_mib) if small_disk_mib else None
        data = directory / "disk" if self.disk is not None else directory
        self.port = port or free_port()
        self.bookie_id = f"127.0.0.1:{self.port}"
        self.is_frozen = False
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        values: dict[str, object] = {
            "bookiePort": self.port,
            "listeningInterface": "lo",
            "allowLoopback": "true",
            "advertisedAddress": "127.0.0.1",
            "journalDirectory": data / "journal",
            "ledgerDirectories": data / "ledgers",
            "metadataServiceUri": f"zk+hierarchical://{zookeeper}{ROOT}",
            "zkTimeout": 10_000,
            "httpServerEnabled": "false",
            "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
            "dbStorage_writeCacheMaxSizeMb": 16,
            "dbStorage_readAheadCacheMaxSizeMb": 8,
            "dbStorage_rocksDB_blockCacheSize": 4_194_304,
            "dbStorage_rocksDB_writeBufferSizeMB": 4,
            "journalSyncData": "true",
            "journalMaxSizeMB": 16,
            "journalPreAllocSizeMB": 2,
            "entryLogFilePreallocationEnabled": "false",
            "nettyMaxFrameSizeBytes": 5_253_120,
            "diskUsageThreshold": "0.99",
            "diskUsageWarnThreshold": "0.98",
            "statisticsEnabled": "false",
            **(_SMALL_DISK_SETTINGS if small_disk_mib else {}),
            **(settings or {}),
        }
        self._settings = directory / "bookie.conf"
        self._settings.write_text("".join(f"{key}={value}\n" for key, value in values.items()))

    @property
    def pid(self) -> int | None:
        """The process's id; None after the process has ended."""
        return self._process.pid if self.is_running and self._process is not None else None

    @property
    def is_running(self) -> bool:
        """Whether the process runs. A bookie ends by itself if it cannot write its journal."""
        if self._process is not None and self._process.poll() is not None:
            self._process = None
        return self._process is not None

    def start(self, *, waits: bool = True) -> None:
        assert not self.is_running, "it runs"
        with (self.directory / "bookie.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(self.disk.prefix if self.disk is not None else ()),
                    "java",
                    "-Xmx128m",
                    "-XX:MaxDirectMemorySize=192m",
                    *_OPTIONS,
                    *self._java_options,
                    "-cp",
                    class_path(PROJECT),
                    "org.apache.bookkeeper.server.Main",
                    "--conf",
                    str(self._settings),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,  # Ctrl-C in a terminal does not reach it: its owner ends it, after its clients
            )
        if waits:
            self.wait()

    def wait(self) -> None:
        """Wait until it answers: it listens some time before, and closes connections until it is registered."""
        deadline = time.monotonic() + START_DEADLINE_S
        while not self._answers():
            assert self._process is not None
            assert self._process.poll() is None, f"the bookie ended: {self.log()}"
            assert time.monotonic() < deadline, f"the bookie does not answer: {self.log()}"
            time.sleep(0.05)

    def _answers(self) -> bool:
        """Return whether the bookie answers a read, of a ledger that does not exist."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                connection.settimeout(5)
                connection.sendall(read_request(MAX_LEDGER_ID, 0))
                return bool(connection.recv(1))
        except OSError:
            return False

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
        assert not self.is_running
        parent = self.disk.path if self.disk is not None else self.directory
        for name in ("journal", "ledgers"):
            shutil.rmtree(parent / name, ignore_errors=True)


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


async def _delete_cookie(address: str, bookie_id: str) -> None:
    client = ZooKeeperClient(ServerAddresses.parse(address), ClientOptions(session_timeout_ms=10_000))
    await client.start(30)
    await client.delete(f"{ROOT}/cookies/{bookie_id}")
    await client.close()


class JavaClient:
    """A process with BookKeeper's Java client, which runs one command after the other."""

    def __init__(
        self, class_path: str, directory: Path, zookeeper: str, *settings: str, java_options: Sequence[str] = ()
    ) -> None:
        address = f"zk+hierarchical://{zookeeper}{ROOT}"
        options = ["-Xmx128m", *_OPTIONS, *java_options, "-cp", class_path, str(EXCHANGE)]
        self._log = directory / "java-client.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                ["java", *options, address, *settings],
                stdin=subprocess.PIPE,  # the process ends when it is closed
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def run(self, *arguments: str) -> list[str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\t".join(arguments) + "\n")
        self._process.stdin.flush()
        lines: list[str] = []
        for line in self._process.stdout:
            if line == ".\n":
                failures = [each for each in lines if each.startswith("!")]
                assert not failures, f"{arguments}: {failures} {self._log.read_text(errors='replace')[-3000:]}"
                return [each[1:] for each in lines if each.startswith("=")]
            lines.append(line.rstrip("\n"))
        raise AssertionError(f"the Java client ended: {self._log.read_text(errors='replace')[-3000:]}")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class BookKeeperCluster:
    """Its address for clients is `zookeeper.address` with the root `ROOT`."""

    def __init__(
        self,
        directory: Path,
        bookie_count: int,
        settings: Mapping[str, object] | None = None,
        small_disk_mib: int = 0,
        java_options: Sequence[str] = (),
        zookeeper_settings: Sequence[str] = (),
    ) -> None:
        self.class_path = class_path(PROJECT)
        self.directory = directory
        self.java: JavaClient | None = None
        self.zookeeper = ZooKeeperServer(directory / "zookeeper", *zookeeper_settings)
        self.bookies = [
            Bookie(directory / f"bookie{each}", self.zookeeper.address, settings, small_disk_mib, java_options)
            for each in range(bookie_count)
        ]

    def start(self) -> None:
        self.zookeeper.start()
        asyncio.run(make_root(self.zookeeper.address))
        for bookie in self.bookies:
            bookie.start(waits=False)
        for bookie in self.bookies:
            bookie.wait()

    def stop(self) -> None:
        if self.java is not None:
            self.java.close()
        for bookie in self.bookies:
            bookie.kill()
            if bookie.disk is not None:
                bookie.disk.close()
        self.zookeeper.kill()

    def forget(self, bookie: Bookie) -> None:
        """Delete the cookie of a bookie, as an operator does before the bookie starts with an empty disk."""
        asyncio.run(_delete_cookie(self.zookeeper.address, bookie.bookie_id))

    def run_java(self, program: Path, *arguments: str) -> list[str]:
        """Run a program that uses the Java client, and return the lines that it prints with "=" in front."""
        address = f"zk+hierarchical://{self.zookeeper.address}{ROOT}"
        command = [
            "java",
            "-Xmx512m",
            *_OPENS,
            *_LOG_OPTIONS,
            "-cp",
            self.class_path,
            str(program),
            address,
            *arguments,
        ]
        result = subprocess.run(command, capture_output=True, text=True, timeout=JAVA_DEADLINE_S, check=False)
        assert result.returncode == 0, (result.stdout + result.stderr)[-3000:]
        return [line[1:] for line in result.stdout.splitlines() if line.startswith("=")]

    def exchange(self, *arguments: str) -> list[str]:
        """Run a command of the Java client (LedgerExchange.java), and return the lines that it prints."""
        if self.java is None:
            self.java = JavaClient(self.class_path, self.directory, self.zookeeper.address)
        return self.java.run(*arguments)


@contextmanager
def bookkeeper_cluster(
    bookie_count: int,
    settings: Mapping[str, object] | None = None,
    small_disk_mib: int = 0,
    java_options: Sequence[str] = (),
    zookeeper_settings: Sequence[str] = (),
) -> Iterator[BookKeeperCluster]:
    """Run a cluster for the block, in a directory of its own. `settings` are added to those of the bookies."""
    with tempfile.TemporaryDirectory(prefix="bookkeeper-") as directory:
        cluster = BookKeeperCluster(
            Path(directory), bookie_count, settings, small_disk_mib, java_options, zookeeper_settings
        )
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()
