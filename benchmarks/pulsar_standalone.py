"""Apache Pulsar from its published jars: the standalone broker, and the load tool pulsar-perf.

Maven resolves the jars once, about 450 MB. `PULSAR_MEM` and `PULSAR_GC` set the options of the broker's Java virtual
machine, as in Pulsar's own scripts.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tools.maven_jars import JarsMissing, class_path

from benchmarks.brokers import Broker, durability_name, end_process, free_ports

_JAVA = Path(__file__).parent / "java"
STANDALONE = _JAVA / "pulsar_standalone.xml"
PERF = _JAVA / "pulsar_perf.xml"
START_TIMEOUT_S = 150.0
_OLDEST_JAVA = 17
_MEMORY = "-Xms2g -Xmx2g -XX:MaxDirectMemorySize=4g"
_COLLECTOR = "-XX:+UseG1GC -XX:+PerfDisableSharedMem -XX:+AlwaysPreTouch"
_PERF_OPTIONS = "-Xms512m -Xmx1g -XX:MaxDirectMemorySize=2g -XX:+UseG1GC"
_BOOKKEEPER = "org.apache.pulsar.metadata.bookkeeper.PulsarMetadata"
_OPENED = (
    "java.base/java.io java.base/java.util.zip java.base/java.nio java.base/jdk.internal.misc java.base/sun.net"
    " java.management/sun.management java.base/jdk.internal.platform"
)
_COMMON = [
    *(word for module in _OPENED.split() for word in ("--add-opens", f"{module}=ALL-UNNAMED")),
    f"-Dlog4j.configurationFile={_JAVA / 'log4j2.xml'}",
    "-Dlog4j.shutdownHookEnabled=false",  # otherwise pulsar-perf can lose its summary
    "-Dlog4j2.is.webapp=false",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.recycler.maxCapacityPerThread=4096",
]


def require_java() -> None:
    """Resolve all jars. Raises JarsMissing with what is missing on this machine."""
    try:
        answer = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
        version = re.search(r'version "(\d+)', answer.stderr)
    except OSError:
        version = None
    if version is None or int(version.group(1)) < _OLDEST_JAVA:
        raise JarsMissing("needs a JDK 17 or newer on the PATH: apt install openjdk-17-jdk-headless maven")
    for project in (STANDALONE, PERF):
        class_path(project)


@contextlib.contextmanager
def started_standalone(journal_sync_data: bool) -> Iterator[Broker]:
    """Run a standalone Pulsar on free ports of 127.0.0.1, with temporary data."""
    port, http_port = free_ports(2)
    with tempfile.TemporaryDirectory(prefix="pulsar-standalone-", ignore_cleanup_errors=True) as directory:
        home = Path(directory)
        configuration = home / "standalone.conf"
        own = (
            f"brokerServicePort={port}\nwebServicePort={http_port}\njournalSyncData={str(journal_sync_data).lower()}\n"
        )
        configuration.write_text((_JAVA / "standalone.conf").read_text() + own)
        with (home / "log").open("wb") as log:
            process = subprocess.Popen(
                _standalone_command(home, configuration),
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            _await_healthy(process, http_port, home / "log")
            urls = f"pulsar://127.0.0.1:{port}", f"http://127.0.0.1:{http_port}"
            yield Broker("pulsar", *urls, process.pid, durability_name(journal_sync_data))
        finally:
            end_process(process)


def _standalone_command(home: Path, configuration: Path) -> list[str]:
    return [
        "java",
        *os.environ.get("PULSAR_MEM", _MEMORY).split(),
        *os.environ.get("PULSAR_GC", _COLLECTOR).split(),
        *_COMMON,
        "-Djute.maxbuffer=10485760",
        "-Djava.net.preferIPv4Stack=true",
        f"-Dbookkeeper.metadata.bookie.drivers={_BOOKKEEPER}BookieDriver",
        f"-Dbookkeeper.metadata.client.drivers={_BOOKKEEPER}ClientDriver",
        "-cp",
        class_path(STANDALONE),
        "org.apache.pulsar.PulsarStandaloneStarter",
        *("--config", str(configuration), "-nfw", "-nss", "-a", "127.0.0.1"),
        *("--bookkeeper-dir", str(home / "bookkeeper"), "--metadata-dir", str(home / "metadata")),
    ]


def _await_healthy(process: subprocess.Popen[bytes], http_port: int, log: Path) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        with contextlib.suppress(OSError):
            health = f"http://127.0.0.1:{http_port}/admin/v2/brokers/health"
            if urllib.request.urlopen(health, timeout=20).read() == b"ok":
                return
        time.sleep(0.1)
    raise RuntimeError(f"Pulsar did not become healthy:\n{log.read_text(errors='replace')[-4000:]}")


def perf_command(verb: str, broker: Broker, *options: object) -> list[str]:
    """Return the command of pulsar-perf `produce` or `consume`, with statistics every second."""
    program = [*_COMMON, "-cp", class_path(PERF), str(_JAVA / "PulsarPerf.java")]
    arguments = [verb, "-u", broker.service_url, "-i", "1", *map(str, options)]
    return ["java", *os.environ.get("PERF_MEM", _PERF_OPTIONS).split(), *program, *arguments]
