"""A cluster on this machine for experiments: one ZooKeeper server, bookies and pybrokers (`make cluster`).

ZooKeeper and the bookies are the published Java programs. Maven downloads their jars once. All addresses are on
127.0.0.1. The data stays in the directory `--data`. Ctrl-C stops everything.

One ZooKeeper server without fsync on one disk is not a production set-up: a power failure can lose its last changes.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.bookkeeper_cluster import Bookie
from tests.support.zookeeper_server import ZooKeeperServer

START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 60.0
CHECK_INTERVAL_S = 0.2
LOG_LINES = 10


class CannotStartError(Exception):
    """The cluster cannot run on this machine. The text contains the reason."""


@dataclass(frozen=True)
class Plan:
    """The parts of the cluster, and their ports on 127.0.0.1."""

    data: Path
    broker_count: int
    bookie_count: int
    zookeeper_port: int
    first_bookie_port: int
    first_broker_port: int
    first_web_port: int
    settings: tuple[str, ...]

    def require(self) -> None:
        """Raise CannotStartError if a program is missing or a port is in use."""
        missing = [program for program in ("java", "mvn") if shutil.which(program) is None]
        if missing:
            raise CannotStartError(
                f"missing on the PATH: {', '.join(missing)}. ZooKeeper and the bookies need Java 17, and Maven downloads "
                "their jars: apt install openjdk-17-jre-headless maven"
            )
        ports = [
            self.zookeeper_port,
            *(self.first_bookie_port + each for each in range(self.bookie_count)),
            *(self.first_broker_port + each for each in range(self.broker_count)),
            *(self.first_web_port + each for each in range(self.broker_count)),
        ]
        for port in ports:
            try:
                socket.create_server(("127.0.0.1", port)).close()
            except OSError as error:
                raise CannotStartError(
                    f"port {port} cannot be used: {error.strerror}. End the other program, or choose other ports (--help)"
                ) from None

    @property
    def metadata_url(self) -> str:
        return f"zk:127.0.0.1:{self.zookeeper_port}"

    @property
    def service_url(self) -> str:
        ports = (self.first_broker_port + each for each in range(self.broker_count))
        return "pulsar://" + ",".join(f"127.0.0.1:{port}" for port in ports)


class Broker:
    """One `pybroker serve`."""

    def __init__(self, plan: Plan, number: int) -> None:
        self.name = f"broker{number}"
        self.port = plan.first_broker_port + number - 1
        self.web_port = plan.first_web_port + number - 1
        self.log = plan.data / f"{self.name}.log"
        quorum = min(2, plan.bookie_count)
        values = {
            "clusterName": "local",
            "metadataStoreUrl": plan.metadata_url,
            "ledgerStore": "bookkeeper",
            "managedLedgerDefaultEnsembleSize": quorum,
            "managedLedgerDefaultWriteQuorum": quorum,
            "managedLedgerDefaultAckQuorum": quorum,
            "advertisedAddress": "127.0.0.1",
            "brokerServicePort": self.port,
            "webServicePort": self.web_port,
        }
        self.command = [sys.executable, "-m", "pybroker", "serve", "--data", str(plan.data / self.name)]
        for word in (*(f"{key}={value}" for key, value in values.items()), *plan.settings):
            self.command += ["--set", word]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process's id; None after the process has ended."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
            )

    def wait(self) -> None:
        """Wait until the broker is ready. Raises CannotStartError with the end of its log."""
        deadline = time.monotonic() + START_DEADLINE_S
        while not self._is_ready():
            if self.pid is None or time.monotonic() > deadline:
                raise CannotStartError(f"{self.name} did not start: {self.log}\n{last_lines(self.log)}")
            time.sleep(CHECK_INTERVAL_S)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.web_port}/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def begin_stop(self) -> None:
        if self.pid is not None and self._process is not None:
            self._process.terminate()

    def end_stop(self, deadline: float) -> None:
        """Wait until the process has ended. Kill it at the monotonic time `deadline`, in seconds."""
        if self._process is None:
            return
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class LocalCluster:
    """All processes of the cluster. `stop` ends all running processes, also after a failed start."""

    def __init__(self, plan: Plan, report: Callable[[str], None]) -> None:
        self._plan = plan
        self._report = report
        plan.data.mkdir(parents=True, exist_ok=True)
        try:
            self.zookeeper = ZooKeeperServer(plan.data / "zookeeper", port=plan.zookeeper_port)
        except pytest.skip.Exception as missing:
            raise CannotStartError(str(missing.msg)) from None
        self.bookies = [
            Bookie(plan.data / f"bookie{each + 1}", self.zookeeper.address, port=plan.first_bookie_port + each)
            for each in range(plan.bookie_count)
        ]
        self.brokers = [Broker(plan, each + 1) for each in range(plan.broker_count)]

    def start(self) -> None:
        """Start all processes, and wait until the cluster is ready. Raises CannotStartError."""
        try:
            self._report("starting ZooKeeper")
            self.zookeeper.start()
            self._prepare_metadata()
            self._report(f"starting {len(self.bookies)} bookies")
            for bookie in self.bookies:
                bookie.start(waits=False)
            for bookie in self.bookies:
                bookie.wait()
        except pytest.skip.Exception as missing:
            raise CannotStartError(str(missing.msg)) from None
        except AssertionError as failure:
            raise CannotStartError(str(failure)) from None
        self._report(f"starting {len(self.brokers)} brokers")
        for broker in self.brokers:
            broker.start()
        for broker in self.brokers:
            broker.wait()

    def _prepare_metadata(self) -> None:
        """Create the cluster's nodes in ZooKeeper. Nodes of an earlier start stay."""
        command = [sys.executable, "-m", "pybroker", "metadata", "init", "--cluster", "local"]
        command += ["--metadata-store", self._plan.metadata_url]
        result = subprocess.run(command, capture_output=True, text=True, timeout=START_DEADLINE_S, check=False)
        if result.returncode:
            raise CannotStartError(f"the metadata of the cluster cannot be created: {result.stderr.strip()}")

    def processes(self) -> dict[str, int | None]:
        """Return the process id of each part of the cluster; None for a part that has ended."""
        found: dict[str, int | None] = {"zookeeper": self.zookeeper.pid}
        found |= {f"bookie{number}": bookie.pid for number, bookie in enumerate(self.bookies, 1)}
        return found | {broker.name: broker.pid for broker in self.brokers}

    def stop(self) -> None:
        """Stop the brokers, which hand over their topics, and then the bookies and ZooKeeper."""
        deadline = time.monotonic() + STOP_DEADLINE_S
        for broker in self.brokers:
            broker.begin_stop()
        for broker in self.brokers:
            broker.end_stop(deadline)
        for bookie in self.bookies:
            bookie.kill()
        self.zookeeper.kill()


def last_lines(path: Path) -> str:
    """Return the end of a log file."""
    return "\n".join(path.read_text(errors="replace").splitlines()[-LOG_LINES:]) if path.exists() else ""


def summary(cluster: LocalCluster, plan: Plan) -> str:
    """Return the text that the user sees after the start."""
    ids = cluster.processes()
    lines = ["", f"Service URL    {plan.service_url}"]
    lines += [
        f"{'Web service' if number == 0 else '':15}http://127.0.0.1:{broker.web_port}   ({broker.name}, pid {broker.pid})"
        for number, broker in enumerate(cluster.brokers)
    ]
    others = ", ".join(f"{name} pid {pid}" for name, pid in ids.items() if not name.startswith("broker"))
    lines += [f"Metadata       {plan.metadata_url}", f"Java processes {others}", f"Data and logs  {plan.data}", ""]
    lines += ["Try the loss of a broker: kill -9 the process of a broker. Ctrl-C stops the cluster.", ""]
    return "\n".join(lines)


def watch(cluster: LocalCluster, is_stopped: Callable[[], bool], report: Callable[[str], None]) -> None:
    """Report each process that ends, until the user stops the cluster."""
    before = cluster.processes()
    commands = {broker.name: broker.command for broker in cluster.brokers}
    while not is_stopped():
        time.sleep(CHECK_INTERVAL_S)
        now = cluster.processes()
        for name in now:
            if before[name] is not None and now[name] is None:
                again = f" Start it again in another terminal: {shlex.join(commands[name])}" if name in commands else ""
                report(f"{name} (pid {before[name]}) has ended.{again}")
        before = now


def parsed(arguments: Sequence[str] | None) -> Plan:
    """Return the plan that the command line describes."""
    parser = argparse.ArgumentParser(
        prog="make cluster", description=__doc__.split("\n\n")[0], usage='make cluster ARGS="[options]"'
    )
    parser.add_argument("--data", type=Path, default=Path("data-cluster"), help="directory of the data and logs")
    parser.add_argument("--brokers", type=int, default=3, help="number of brokers (3)")
    parser.add_argument("--bookies", type=int, default=3, help="number of bookies (3)")
    parser.add_argument("--zookeeper-port", type=int, default=2181)
    parser.add_argument("--bookie-port", type=int, default=3181, help="of the first bookie (3181)")
    parser.add_argument("--port", type=int, default=6650, help="binary protocol of the first broker (6650)")
    parser.add_argument("--web-port", type=int, default=8080, help="web service of the first broker (8080)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a configuration key of all brokers"
    )
    options = parser.parse_args(arguments)
    if options.brokers < 1 or options.bookies < 1:
        parser.error("at least one broker and one bookie are needed")
    return Plan(
        data=options.data.absolute(),
        broker_count=options.brokers,
        bookie_count=options.bookies,
        zookeeper_port=options.zookeeper_port,
        first_bookie_port=options.bookie_port,
        first_broker_port=options.port,
        first_web_port=options.web_port,
        settings=tuple(options.set),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cluster until SIGINT or SIGTERM. Returns 0 after a stop and 1 if it cannot start."""
    plan = parsed(arguments)
    is_stopped = False

    def stop(_number: int, _frame: object) -> None:
        nonlocal is_stopped
        if is_stopped:
            return
        is_stopped = True
        if is_starting:
            raise KeyboardInterrupt

    def report(text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    is_starting = True
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    cluster = None
    try:
        plan.require()
        cluster = LocalCluster(plan, report)
        cluster.start()
        is_starting = False
        report(summary(cluster, plan))
        watch(cluster, lambda: is_stopped, report)
    except CannotStartError as error:
        sys.stderr.write(f"The cluster cannot start: {error}\n")
        return 1
    except KeyboardInterrupt:
        pass
    finally:
        is_starting = False
        if cluster is not None:
            report("stopping")
            cluster.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
