"""The brokers of a storm: ours and the reference, with what an outside view can tell of them.

What is started here is gone when the context ends; the reference is stopped by its own script, also when it was started again.
"""

import contextlib
import os
import re
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

from benchmarks.brokers import Broker, started_reference
from tests.support.broker_process import BrokerProcess
from tests.support.rest import call

SETTINGS = {
    # Small ledgers that end at once, so that trimming has something to take away.
    "managedLedgerMaxEntriesPerLedger": "10",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    # What a scenario has made stays until it is looked at.
    "brokerDeleteInactiveTopicsEnabled": "false",
    "forceDeleteNamespaceAllowed": "true",
}
START_TIMEOUT_S = 120.0


class StormBroker(ABC):
    """A broker with addresses that outlive `kill` and `start_again`."""

    name: str
    url: str
    http_url: str
    pid: int
    log: Path

    @abstractmethod
    def kill(self) -> None:
        """`kill -9`, and until it is gone."""

    @abstractmethod
    def start_again(self) -> None:
        """With what it left behind; returns when it is healthy."""

    def resident_mb(self) -> int:
        """Linux only; 0 elsewhere."""
        with contextlib.suppress(FileNotFoundError):
            found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{self.pid}/status").read_text())
            return int(found.group(1)) // 1024 if found else 0
        return 0

    def is_healthy(self) -> bool:
        with contextlib.suppress(OSError):
            return call(f"{self.http_url}/admin/v2/brokers/health").text == "ok"
        return False

    def metric(self, name: str) -> float:
        """The sum over all labels."""
        text = call(f"{self.http_url}/metrics/").text
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)", text, re.MULTILINE))

    def errors(self) -> list[str]:
        """Lines of the log that an operator would have to look at."""
        text = self.log.read_text(errors="replace")
        return [line for line in text.splitlines() if re.match(r"\S+ (\S+ )?ERROR\b|Traceback", line)]


class OurBroker(StormBroker):
    name = "pybroker"

    def __init__(self, process: BrokerProcess) -> None:
        self._process = process
        self.log = process.log
        self._take()

    def _take(self) -> None:
        assert self._process.process is not None
        self.url, self.http_url, self.pid = self._process.url, self._process.http_url, self._process.process.pid

    def kill(self) -> None:
        self._process.kill()

    def start_again(self) -> None:
        self._process.start()
        self._take()


class ReferenceBroker(StormBroker):
    name = "reference"

    def __init__(self, broker: Broker) -> None:
        assert broker.http_url is not None
        assert broker.pid is not None
        self.url, self.http_url, self.pid = broker.service_url, broker.http_url, broker.pid
        process = Path(f"/proc/{self.pid}")
        self._home = (process / "cwd").resolve()
        self._command = (process / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        self.log = self._home / "run/standalone.log"

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        # Nobody may be there who takes notice of its end.
        while Path(f"/proc/{self.pid}").exists() and ") Z " not in Path(f"/proc/{self.pid}/stat").read_text():
            time.sleep(0.01)

    def start_again(self) -> None:
        with self.log.open("ab") as log:
            started = subprocess.Popen(
                self._command, cwd=self._home, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
        self.pid = started.pid
        (self._home / "run/pid").write_text(str(self.pid))
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not self.is_healthy():
            assert time.monotonic() < deadline_s, "the reference does not come back"
            assert started.poll() is None, "the reference ended"
            time.sleep(0.1)


@contextlib.contextmanager
def our_broker(directory: Path) -> Iterator[OurBroker]:
    process = BrokerProcess(directory, SETTINGS)
    process.start()
    try:
        yield OurBroker(process)
    finally:
        process.stop()


@contextlib.contextmanager
def reference_broker(script_directory: Path) -> Iterator[ReferenceBroker]:
    with started_reference(script_directory, journal_sync_data=True, settings=SETTINGS) as broker:
        yield ReferenceBroker(broker)
