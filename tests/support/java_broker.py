"""A real Java broker on the ZooKeeper and the bookies of a `BookKeeperCluster`. The jars are those of `baseline setup`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tests.support.zookeeper_server import free_port

START_DEADLINE_S = 180.0
STOP_DEADLINE_S = 60.0
_MODULES = (
    "java.base/java.io java.base/java.util.zip java.base/java.nio java.base/jdk.internal.misc java.base/sun.net"
    " java.management/sun.management java.base/jdk.internal.platform"
)
_BOOKKEEPER = "org.apache.pulsar.metadata.bookkeeper.PulsarMetadata"
_OPTIONS = (
    "-Xms200m -Xmx384m -XX:MaxDirectMemorySize=384m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:+PerfDisableSharedMem"
    " -Dlog4j2.is.webapp=false -Dlog4j2.level=warn -Dio.netty.tryReflectionSetAccessible=true"
    " -Djava.net.preferIPv4Stack=true"
    f" -Dbookkeeper.metadata.bookie.drivers={_BOOKKEEPER}BookieDriver"
    f" -Dbookkeeper.metadata.client.drivers={_BOOKKEEPER}ClientDriver"
)


def class_path() -> str:
    """Return the jars of a Java broker. Skips the test if there is no Java or no jars."""
    jars = Path(os.environ.get("PULSAR_BASELINE_HOME", Path.home() / ".cache/pulsar-baseline")) / "server/cp.txt"
    if shutil.which("java") is None or not jars.exists():
        pytest.skip("a Java broker needs Java 17 and the jars of `baseline setup` (PULSAR_BASELINE_HOME)")
    return jars.read_text().strip()


class JavaBroker:
    """Its port stays the same over restarts."""

    def __init__(
        self, directory: Path, zookeeper: str, settings: dict[str, str], ports: tuple[int, int] | None = None
    ) -> None:
        """`ports`: of the protocol and of HTTP, by default free ones. Skips the test if there is no Java or no jars."""
        self._class_path = class_path()
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.port, self.web_port = ports or (free_port(), free_port())
        values = {
            "metadataStoreUrl": f"zk:{zookeeper}",
            "configurationMetadataStoreUrl": f"zk:{zookeeper}",
            "bindAddress": "127.0.0.1",
            "advertisedAddress": "127.0.0.1",
            "brokerServicePort": str(self.port),
            "webServicePort": str(self.web_port),
            "metadataStoreSessionTimeoutMillis": "5000",
            "numIOThreads": "2",
            "numHttpServerThreads": "4",
            "managedLedgerCacheSizeMB": "32",
            "allowAutoTopicCreationType": "non-partitioned",
            "functionsWorkerEnabled": "false",
            **settings,
        }
        self._configuration = directory / "broker.conf"
        self._configuration.write_text("".join(f"{key}={value}\n" for key, value in values.items()))

    @property
    def url(self) -> str:
        return f"pulsar://127.0.0.1:{self.port}"

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.web_port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        opens = [argument for module in _MODULES.split() for argument in ("--add-opens", f"{module}=ALL-UNNAMED")]
        main = ["org.apache.pulsar.PulsarBrokerStarter", "--broker-conf", str(self._configuration)]
        with (self._directory / "java-broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["java", *_OPTIONS.split(), *opens, "-cp", self._class_path, *main],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._directory,
            )
        deadline = time.monotonic() + START_DEADLINE_S
        while not self._is_healthy():
            assert self._process.poll() is None, f"the Java broker ended: {self.log()}"
            assert time.monotonic() < deadline, f"the Java broker is not healthy: {self.log()}"
            time.sleep(0.2)

    def _is_healthy(self) -> bool:
        try:
            url = f"{self.http_url}/admin/v2/brokers/health"
            return bool(urllib.request.urlopen(url, timeout=20).read() == b"ok")
        except (OSError, urllib.error.URLError):
            return False

    def log(self) -> str:
        return (self._directory / "java-broker.log").read_text(errors="replace")[-4000:]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop it if it runs, by default with an orderly unload of its topics."""
        if self._process is not None:
            self._process.send_signal(number)
            self.wait()

    def wait(self) -> None:
        """Wait until the process ends by itself. A process that does not end in time is killed."""
        process, self._process = self._process, None
        assert process is not None
        try:
            process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
