"""A real `pybroker serve` in its own process, on free ports, which can be killed and restarted."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0


class BrokerProcess:
    """Owned by a test; `stop` or `kill` must be called. Every start uses the same data directory and ports."""

    def __init__(self, directory: Path, settings: dict[str, str] | None = None) -> None:
        self.directory = directory
        self.data = directory / "data"
        # Tests need current metrics.
        self.settings = {"metricsPageIntervalMs": "0", **(settings or {})}
        self.process: subprocess.Popen[bytes] | None = None
        self.module = "pybroker"  # What python runs; tests with faults have one of their own.
        self.arguments: list[str] = []  # More of the command line, and of the environment.
        self.environment: dict[str, str] = {}
        self.ready: dict[str, Any] = {}
        self.log = directory / "broker.log"

    def start(self) -> "BrokerProcess":
        """Start and wait until the broker is ready. A restart requests the same ports, as a real broker has fixed
        ones.
        """
        ready_file = self.directory / "ready.json"
        ready_file.unlink(missing_ok=True)
        ports = {
            "brokerServicePort": self.ready.get("broker_port", 0),
            "webServicePort": self.ready.get("http_port", 0),
        }
        if "brokerServicePortTls" in self.settings:
            ports["brokerServicePortTls"] = self.ready.get("broker_port_tls", 0)
        if "webServicePortTls" in self.settings:
            ports["webServicePortTls"] = self.ready.get("http_port_tls", 0)
        command = [sys.executable, "-m", self.module, "serve", "--data", str(self.data)]
        command += ["--ready-file", str(ready_file)]
        for key, value in {**self.settings, **ports}.items():
            command += ["--set", f"{key}={value}"]
        command += self.arguments
        environment = {**os.environ, **self.environment}
        had_its_port = self.process is not None
        self.process = self._launch(command, environment)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not ready_file.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                if had_its_port and deadline > time.monotonic() and self._has_lost_its_port():
                    # An outgoing connection of another process uses the port; such connections are short.
                    time.sleep(0.2)
                    self.process = self._launch(command, environment)
                    continue
                raise RuntimeError(f"the broker did not start:\n{self.log.read_text()}")
            time.sleep(0.01)
        self.ready = json.loads(ready_file.read_text())
        return self

    def _launch(self, command: list[str], environment: dict[str, str]) -> "subprocess.Popen[bytes]":
        with self.log.open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)

    def _has_lost_its_port(self) -> bool:
        return "Address already in use" in self.log.read_text().splitlines()[-1]

    @contextmanager
    def running(self) -> "Iterator[BrokerProcess]":
        """Start the broker and stop it at the end. Asserts a clean stop unless the block fails."""
        self.start()
        try:
            yield self
        except BaseException:
            self.kill()
            raise
        assert self.stop() == 0

    @contextmanager
    def running_well(self) -> "Iterator[BrokerProcess]":
        """Like `running`, and assert that the log contains no stack trace."""
        with self.running():
            yield self
        assert "Traceback" not in self.log.read_text()

    @property
    def url(self) -> str:
        return str(self.ready["broker_url"])

    @property
    def http_url(self) -> str:
        return str(self.ready["http_url"])

    def kill(self) -> None:
        """Send SIGKILL: nothing is flushed, and no client is notified."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and return the exit code. Does nothing if the process has ended."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Wait until the process ends by itself, and return the exit code. A process that does not end in time is killed."""
        assert self.process is not None
        try:
            return self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()
            raise

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def resident_bytes(self) -> int:
        """Return the process's resident memory (Linux only)."""
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024

    def restart_after_kill(self) -> None:
        """Kill the broker and start it on the remaining data."""
        self.kill()
        self.start()

    def get(self, path: str) -> str:
        """Return the body of an HTTP GET."""
        with urllib.request.urlopen(self.http_url + path, timeout=10) as response:
            return str(response.read().decode())
