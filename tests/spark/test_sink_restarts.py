"""Streams whose tasks and drivers die: at least once loses nothing, effectively and exactly once store each row once as well."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.spark.sink_restarts import ROWS
from tests.support.broker_process import BrokerProcess
from tests.tables.stored import stored

pytestmark = [pytest.mark.spark, pytest.mark.long]
ROOT = Path(__file__).resolve().parents[2]


def run(broker: BrokerProcess, topic: str, delivery: str, directory: Path, event: str) -> int:
    command = [sys.executable, "-m", "tests.spark.sink_restarts", broker.url, broker.http_url]
    command += [topic, delivery, str(directory), event]
    return subprocess.run(command, cwd=ROOT, timeout=240, check=False, capture_output=True).returncode


@pytest.mark.parametrize("delivery", ["at-least-once", "effectively-once", "exactly-once"])
def test_a_task_that_dies_is_tried_again(broker: BrokerProcess, topic: str, tmp_path: Path, delivery: str) -> None:
    assert run(broker, topic, delivery, tmp_path, "task") == 0
    assert (tmp_path / "died").exists()
    found = stored(broker, topic)
    assert set(found) == set(range(ROWS))
    if delivery != "at-least-once":
        assert max(found.values()) == 1


@pytest.mark.parametrize("delivery", ["at-least-once", "effectively-once", "exactly-once"])
def test_a_query_that_ended_in_the_middle_is_started_again(
    broker: BrokerProcess, topic: str, tmp_path: Path, delivery: str
) -> None:
    assert run(broker, topic, delivery, tmp_path, "driver") == 1  # its exception
    assert run(broker, topic, delivery, tmp_path, "driver") == 0
    found = stored(broker, topic)
    assert set(found) == set(range(ROWS))
    if delivery != "at-least-once":
        assert max(found.values()) == 1


@pytest.mark.parametrize("delivery", ["effectively-once", "exactly-once"])
def test_a_batch_that_the_driver_has_not_noted_as_done_is_skipped_when_it_was_stored(
    broker: BrokerProcess, topic: str, tmp_path: Path, delivery: str
) -> None:
    (tmp_path / "died").write_text("nobody dies")
    assert run(broker, topic, delivery, tmp_path, "driver") == 0
    commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    assert commits
    commits[-1].unlink()
    (tmp_path / "checkpoint" / "commits" / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    assert run(broker, topic, delivery, tmp_path, "driver") == 0
    found = stored(broker, topic)
    assert set(found) == set(range(ROWS))
    assert max(found.values()) == 1
