"""A real ZooKeeper server for tests: one process with a small heap, from the published jars.

Tests skip with the reason where Java, Maven or the jars are missing.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from tools import maven_jars

PROJECT = Path(__file__).parent / "java_projects/zookeeper.xml"
SET_COUNTER = Path(__file__).parent / "SetCounter.java"
START_DEADLINE_S = 60.0
TICK_MS = 500
"""Sessions last 2 to 20 ticks."""


def class_path(project: Path = PROJECT) -> str:
    """Return the class path of a Maven project. Skips the test with the reason if it cannot be resolved."""
    try:
        return maven_jars.class_path(project)
    except maven_jars.JarsMissing as error:
        pytest.skip(str(error))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


class ZooKeeperServer:
    """One server on 127.0.0.1. Its data and its port stay the same over restarts."""

    def __init__(self, directory: Path, *settings: str, defines: tuple[str, ...] = (), port: int = 0) -> None:
        """`settings` are lines of the configuration, `defines` properties of the virtual machine (`name=value`).

        Without `port`, a free port is used.
        """
        self._defines = [f"-D{each}" for each in defines]
        self._class_path = class_path()
        self.directory = directory
        self.port = port or free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None
        self.data = directory / "data"
        self.data.mkdir(parents=True, exist_ok=True)
        lines = [
            f"tickTime={TICK_MS}",
            f"dataDir={self.data}",
            f"clientPort={self.port}",
            "clientPortAddress=127.0.0.1",
            "admin.enableServer=false",
            "4lw.commands.whitelist=srvr,mntr,cons,dump",
            "maxClientCnxns=0",
            "snapshot.trust.empty=true",
            *settings,
        ]
        self._settings = directory / "zoo.cfg"
        self._settings.write_text("\n".join(lines) + "\n")

    def start(self) -> None:
        """Start the process and wait until it serves."""
        assert self._process is None, "it runs"
        options = ["-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+PerfDisableSharedMem"]
        defines = ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dzookeeper.forceSync=no", *self._defines]
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        with (self.directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["java", *options, *defines, "-cp", self._class_path, main, str(self._settings)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,  # Ctrl-C in a terminal does not reach it: its owner ends it, after its clients
            )
        deadline = time.monotonic() + START_DEADLINE_S
        while not self._serves():
            log_text = (self.directory / "server.log").read_text(errors="replace")[-2000:]
            assert self._process.poll() is None, f"ZooKeeper ended: {log_text}"
            assert time.monotonic() < deadline, f"ZooKeeper does not serve: {log_text}"
            time.sleep(0.02)

    @property
    def pid(self) -> int | None:
        """The process's id; None after the process has ended."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    def command(self, name: str) -> str:
        """Return the answer to a command of four letters. Raises OSError."""
        with socket.create_connection(("127.0.0.1", self.port), 5) as connection:
            connection.sendall(name.encode())
            parts = []
            while part := connection.recv(65536):
                parts.append(part)
        return b"".join(parts).decode()

    def _serves(self) -> bool:
        try:
            return "Mode:" in self.command("srvr")
        except OSError:
            return False

    def kill(self) -> None:
        """Kill the process at once. Its data stays."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def set_counters(self, counters: Mapping[str, int]) -> None:
        """Restart with other numbers of the next sequential children of nodes, by path."""
        self.kill()
        arguments = [word for path, number in counters.items() for word in (path, str(number))]
        command = [
            "java",
            "-Xmx64m",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            self._class_path,
            str(SET_COUNTER),
            str(self.data),
        ]
        result = subprocess.run(
            [*command, *arguments], timeout=START_DEADLINE_S, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stderr[-3000:]
        self.start()

    def freeze(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


@contextmanager
def zookeeper_server(*settings: str, defines: tuple[str, ...] = ()) -> Iterator[ZooKeeperServer]:
    """Run a server for the block, in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="zookeeper-") as directory:
        server = ZooKeeperServer(Path(directory), *settings, defines=defines)
        try:
            server.start()
            yield server
        finally:
            server.kill()
