"""`make cluster`: a client publishes, the cluster is stopped and started again with the same data."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pulsar
import pytest
from tests.support.zookeeper_server import class_path, free_port
from tools import local_cluster

TOPIC = "persistent://public/default/kept"
MESSAGES = 20


@pytest.fixture
def ports() -> dict[str, int]:
    return {name: free_port() for name in ("--zookeeper-port", "--bookie-port", "--port", "--web-port")}


@contextmanager
def running(directory: Path, ports: dict[str, int]) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Run a cluster of one bookie and one broker. Yields the process and the lines of its summary."""
    command = [
        sys.executable,
        "-m",
        "tools.local_cluster",
        "--data",
        str(directory),
        "--bookies",
        "1",
        "--brokers",
        "1",
    ]
    command += [word for name, port in ports.items() for word in (name, str(port))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        lines: list[str] = []
        try:
            for line in process.stdout:
                lines.append(line.rstrip())
                if line.startswith("Try the loss"):
                    break
            assert process.poll() is None, lines
            yield process, lines
            process.send_signal(signal.SIGINT)
            assert "stopping" in process.stdout.read()
            assert process.wait(60) == 0
        finally:
            process.terminate()


def broker_pid(lines: list[str]) -> int:
    line = next(each for each in lines if "broker1, pid" in each)
    return int(line.rpartition("pid ")[2].rstrip(")"))


@pytest.mark.long
@pytest.mark.cluster
def test_cluster_keeps_messages_over_kill_of_broker_and_restart(tmp_path: Path, ports: dict[str, int]) -> None:
    class_path()  # skips with the reason where Java or Maven is missing
    with running(tmp_path, ports) as (process, lines):
        url = next(each for each in lines if each.startswith("Service URL")).split()[-1]
        assert url == f"pulsar://127.0.0.1:{ports['--port']}"
        client = pulsar.Client(url)
        producer = client.create_producer(TOPIC)
        for number in range(MESSAGES):
            producer.send(str(number).encode())
        client.close()
        os.kill(broker_pid(lines), signal.SIGKILL)
        assert process.stdout is not None
        next(each for each in process.stdout if "has ended. Start it again" in each)
    with running(tmp_path, ports):
        client = pulsar.Client(url)
        consumer = client.subscribe(TOPIC, "s", initial_position=pulsar.InitialPosition.Earliest)
        assert [int(consumer.receive(10_000).data()) for _ in range(MESSAGES)] == list(range(MESSAGES))
        client.close()


def test_port_in_use_refuses_start_before_anything_runs(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        plan = local_cluster.parsed(["--data", str(tmp_path / "data"), "--zookeeper-port", str(port)])
        with pytest.raises(local_cluster.CannotStartError, match=f"port {port} cannot be used|missing on the PATH"):
            plan.require()
    assert not (tmp_path / "data").exists()


def test_missing_programs_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "")
    assert local_cluster.main([]) == 1
    assert "missing on the PATH: java, mvn" in capsys.readouterr().err
