"""Broker processes under load: pybroker, the reference broker, and their CPU time and memory.

A context ends the processes that it started and removes their temporary directories.
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

PROC = pathlib.Path("/proc")  # Linux only; on other systems CPU time and memory are not shown
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0
REFERENCE_START_TIMEOUT_S = 150.0


@dataclass(frozen=True)
class Broker:
    """A broker's address. With a process id, its CPU time and memory can be read (Linux)."""

    name: str
    service_url: str
    http_url: str | None = None
    pid: int | None = None
    durability: str = "unknown"

    def cpu_s(self) -> float | None:
        if self.pid is None or not PROC.exists():
            return None
        stat = (PROC / f"{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    def rss_mb(self) -> int | None:
        if self.pid is None or not PROC.exists():
            return None
        found = re.search(r"VmRSS:\s+(\d+)", (PROC / f"{self.pid}/status").read_text())
        return int(found.group(1)) // 1024 if found else None


def parse_target(text: str) -> Broker:
    """Parse NAME=pulsar://HOST:PORT[,PID[,DURABILITY]]."""
    name, _, rest = text.partition("=")
    url, *more = rest.split(",")
    if not name or not url.startswith("pulsar://"):
        raise ValueError(f"the target {text} is invalid: use NAME=pulsar://HOST:PORT[,PID[,DURABILITY]]")
    return Broker(name, url, pid=int(more[0]) if more else None, durability=more[1] if len(more) > 1 else "unknown")


def durability_name(journal_sync_data: bool) -> str:
    return "sync" if journal_sync_data else "nosync"


class PybrokerProcess:
    """A `pybroker serve` on free ports with its own data directory, which can be killed and restarted. `stop` must be
    called.
    """

    def __init__(
        self,
        directory: pathlib.Path,
        journal_sync_data: bool = True,
        settings: Mapping[str, str] | None = None,
        command: Sequence[str] | None = None,
    ) -> None:
        self._directory = directory
        self._command = pybroker_command() if command is None else command
        self.settings = {"journalSyncData": str(journal_sync_data).lower(), **(settings or {})}
        """Used at the next start."""
        self._process: subprocess.Popen[bytes] | None = None
        self.starting_s = 0.0  # duration of the last start until the broker was ready

    def start(self) -> Broker:
        ready, log = self._directory / "ready.json", self._directory / "log"
        ready.unlink(missing_ok=True)
        command = [*self._command, "serve", "--port", "0", "--http-port", "0", "--ready-file", str(ready)]
        command += ["--data", str(self._directory / "data")]
        for key, value in self.settings.items():
            command += ["--set", f"{key}={value}"]
        started_s = time.monotonic()
        with log.open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        facts = _await_ready(self._process, ready, log)
        self.starting_s = time.monotonic() - started_s
        durability = durability_name(self.settings["journalSyncData"] == "true")
        return Broker("pybroker", facts["broker_url"], facts["http_url"], self._process.pid, durability)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            end_process(self._process)


@contextlib.contextmanager
def own_pybroker(
    journal_sync_data: bool = True,
    settings: Mapping[str, str] | None = None,
    command: Sequence[str] | None = None,
) -> Iterator[PybrokerProcess]:
    """Yield a broker that is not started yet; stop and remove it at the end. `command` replaces `pybroker`, for example
    by that of another installation.
    """
    with tempfile.TemporaryDirectory(prefix="pybroker-load-") as directory:
        process = PybrokerProcess(pathlib.Path(directory), journal_sync_data, settings, command)
        try:
            yield process
        finally:
            process.stop()


@contextlib.contextmanager
def started_pybroker(journal_sync_data: bool = True, settings: Mapping[str, str] | None = None) -> Iterator[Broker]:
    with own_pybroker(journal_sync_data, settings) as process:
        yield process.start()


def pybroker_command() -> list[str]:
    installed = pathlib.Path(sys.executable).with_name("pybroker")
    return [str(installed)] if installed.exists() else [sys.executable, "-m", "pybroker"]


def _await_ready(process: subprocess.Popen[bytes], ready: pathlib.Path, log: pathlib.Path) -> dict[str, str]:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            facts: dict[str, str] = json.loads(ready.read_text())
            return facts
        time.sleep(0.005)
    raise RuntimeError(f"pybroker did not become ready:\n{log.read_text(errors='replace')[-4000:]}")


def end_process(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def started_reference(
    directory: pathlib.Path, journal_sync_data: bool = True, settings: Mapping[str, str] | None = None
) -> Iterator[Broker]:
    """Start the reference broker with the `baseline` script of `directory`, on free ports and with a temporary
    directory for its state.
    """
    script = directory.resolve() / "baseline"
    resolved = pathlib.Path(os.environ.get("PULSAR_BASELINE_HOME", pathlib.Path.home() / ".cache/pulsar-baseline"))
    if not (resolved / "tools/Perf.class").exists():
        subprocess.run([sys.executable, str(script), "setup"], check=True)
    with tempfile.TemporaryDirectory(prefix="reference-", ignore_cleanup_errors=True) as home:
        for side in ("server", "tools"):
            pathlib.Path(home, side).symlink_to(resolved / side)
        environment = {**os.environ, "PULSAR_BASELINE_HOME": home, "SYNC": str(journal_sync_data).lower()}
        port, http_port = free_ports(2)
        command = [sys.executable, str(script), "start", "--port", str(port), "--http-port", str(http_port)]
        # Explicit ports instead of port 0, because the script uses them to check the broker's health.
        for key, value in {"brokerShutdownTimeoutMs": "5000", **(settings or {})}.items():
            command += ["--set", f"{key}={value}"]
        try:
            started = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=REFERENCE_START_TIMEOUT_S, check=False
            )
            found = re.search(r"healthy pid=(\d+)", started.stdout)
            if found is None:
                raise RuntimeError(f"the reference broker did not start: {started.stdout}{started.stderr}")
            urls = f"pulsar://127.0.0.1:{port}", f"http://127.0.0.1:{http_port}"
            yield Broker("reference", *urls, int(found.group(1)), durability_name(journal_sync_data))
        finally:
            subprocess.run([sys.executable, str(script), "stop"], env=environment, check=False)
            for part in ("data", "run"):
                shutil.rmtree(pathlib.Path(home, part), ignore_errors=True)


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
