"""Whatever is killed at whatever step, every message is in the files once."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.clients.conftest import new_client
from tests.spark.conftest import ROOT
from tests.spark.sent import assert_same, publish
from tests.support.broker_process import BrokerProcess

pytestmark = [pytest.mark.spark, pytest.mark.long]


class Driver:
    """The query in a process group of its own: the JVM and its Python workers go with it."""

    def __init__(self, broker: BrokerProcess, topic: str, directory: Path, **more: Any) -> None:
        options = {
            "service.url": broker.url,
            "admin.url": broker.http_url,
            "topic": topic,
            "startingOffsets": "earliest",
            "maxMessagesPerTrigger": "400",
            **more.pop("options", {}),
        }
        self.settings = {
            "options": options,
            "checkpoint": f"{directory}/checkpoint",
            "rows": f"{directory}/rows",
            **more,
        }
        self.directory = directory

    def start(self) -> subprocess.Popen[bytes]:
        paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
        with (self.directory / "driver.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.spark.query", json.dumps(self.settings)],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": paths},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def run(self) -> None:
        process = self.start()
        try:
            assert process.wait(300) == 0, (self.directory / "driver.log").read_text()[-5000:]
        finally:
            kill_group(process)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def committed(directory: Path) -> int:
    """How many batches are committed."""
    return len(list((directory / "checkpoint" / "commits").glob("[0-9]*")))


def planned(directory: Path) -> int:
    return len(list((directory / "checkpoint" / "offsets").glob("[0-9]*")))


def wait_for(condition: Any, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + 120
    while not condition() and process.poll() is None:
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def test_a_driver_that_is_killed_at_every_step_loses_and_doubles_nothing(
    spark: Any, own_broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    client = new_client(own_broker.url)
    sent = publish(client, topic, 3000, batching_max_messages=20)
    client.close()
    driver = Driver(own_broker, topic, tmp_path)
    chance = random.Random(7)
    # After an offset is written, and after a batch is committed: then within a batch, wherever that is.
    steps = [(planned, 0.0), (committed, 0.0), (planned, 0.2), (committed, 0.1)]
    for count, (step, later_s) in enumerate(steps, 1):
        process = driver.start()
        before = step(tmp_path)
        wait_for(lambda step=step, before=before: step(tmp_path) > before, process)
        time.sleep(later_s * chance.random())
        kill_group(process)
        assert planned(tmp_path) >= count // 2
    driver.run()
    assert_same(spark.read.parquet(str(tmp_path / "rows")).collect(), sent)


def test_a_task_that_dies_is_run_again_with_the_same_rows(
    spark: Any, own_broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    client = new_client(own_broker.url)
    sent = publish(client, topic, 1000)
    client.close()
    Driver(own_broker, topic, tmp_path, dies_once=str(tmp_path / "died")).run()
    assert (tmp_path / "died").exists()
    assert_same(spark.read.parquet(str(tmp_path / "rows")).collect(), sent)


@pytest.mark.parametrize("mode", ["segment", "bulk", "broker"])
def test_a_broker_that_is_killed_delays_a_query_and_changes_nothing(
    spark: Any, own_broker: BrokerProcess, topic: str, tmp_path: Path, mode: str
) -> None:
    client = new_client(own_broker.url)
    sent = publish(client, topic, 3000, batching_max_messages=20)
    client.close()
    driver = Driver(own_broker, topic, tmp_path, options={"readMode": mode})
    process = driver.start()
    for _ in range(2):
        before = committed(tmp_path)
        wait_for(lambda before=before: committed(tmp_path) > before, process)
        own_broker.restart_after_kill()
    try:
        assert process.wait(300) == 0, (tmp_path / "driver.log").read_text()[-5000:]
    finally:
        kill_group(process)
    assert_same(spark.read.parquet(str(tmp_path / "rows")).collect(), sent)


def test_executors_of_a_cluster_read_what_the_driver_plans(
    spark: Any, own_broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    client = new_client(own_broker.url)
    sent = publish(client, topic, 1000)
    client.close()
    Driver(own_broker, topic, tmp_path, master="local-cluster[2,1,1024]", options={"minPartitions": "4"}).run()
    assert_same(spark.read.parquet(str(tmp_path / "rows")).collect(), sent)
