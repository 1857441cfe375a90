"""The real Pulsar proxy, from its published jars, in a process of its own."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.zookeeper_server import class_path, free_port

PROJECT = Path(__file__).parent / "java_projects/pulsar_proxy.xml"
START_DEADLINE_S = 60.0
OPENS = ("java.base/sun.net", "java.base/java.lang", "java.base/java.nio")


@dataclass
class PulsarProxy:
    url: str
    http_url: str


@contextmanager
def pulsar_proxy(directory: Path, settings: Mapping[str, str]) -> Iterator[PulsarProxy]:
    """Run a proxy for the block. `settings` are lines of its configuration file, without ports and addresses."""
    port, http_port = free_port(), free_port()
    fixed = {
        "clusterName": "standalone",
        "servicePort": port,
        "webServicePort": http_port,
        "bindAddress": "127.0.0.1",
        "advertisedAddress": "127.0.0.1",
        "brokerProxyAllowedHostNames": "*",
        "brokerProxyAllowedIPAddresses": "127.0.0.0/8",
        "brokerProxyAllowedTargetPorts": "*",
    }
    file = directory / "proxy.conf"
    file.write_text("".join(f"{key}={value}\n" for key, value in {**fixed, **settings}.items()))
    opens = [word for each in OPENS for word in ("--add-opens", f"{each}=ALL-UNNAMED")]
    main = "org.apache.pulsar.proxy.server.ProxyServiceStarter"
    log = directory / "proxy.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["java", "-Xmx256m", *opens, "-cp", class_path(PROJECT), main, "--config", str(file)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    try:
        deadline = time.monotonic() + START_DEADLINE_S
        while not all(_accepts(each) for each in (port, http_port)):
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.1)
        yield PulsarProxy(f"pulsar://127.0.0.1:{port}", f"http://127.0.0.1:{http_port}")
    finally:
        process.terminate()
        process.wait()


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
