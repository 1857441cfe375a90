"""Data directories and backups of metadata layout 2: the first start converts them, whatever interrupts it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.stop_at_step import STOPPED as STOPPED_EARLY
from tests.upgrade.sample_content import rest
from tests.upgrade.samples import OWNER_ONLY, SETTINGS, load, unpack

from pybroker.cli import main
from pybroker.metadata import sqlite_table

SAMPLE, STATE = "05-backup", "stopped"
EARLIER_LAYOUT = 2


def layout(data: Path) -> int:
    with closing(sqlite3.connect(data / "metadata.db")) as connection:
        found: int = connection.execute("PRAGMA user_version").fetchone()[0]
        return found


def assert_all_there(data: Path, directory: Path) -> None:
    """Start a broker on a copy of the directory, and compare its answers with those of the sample."""
    broker = BrokerProcess(directory, SETTINGS)
    shutil.copytree(data, broker.data)
    (broker.data / "directory.mark").unlink(missing_ok=True)
    with broker.running_well():
        for path, answer in load(SAMPLE, STATE).answers.items():
            found: Any = rest(broker, "GET", path)
            if isinstance(answer, dict):
                found = {key: found[key] for key in answer}
            assert found == answer, path
    assert layout(broker.data) == sqlite_table.LAYOUT_VERSION


@pytest.fixture
def steps(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "steps"
    directory.mkdir(OWNER_ONLY)
    yield directory
    shutil.rmtree(directory)


@pytest.mark.long
def test_start_that_is_killed_at_any_step_is_repeated(steps: Path, tmp_path: Path) -> None:
    """A start ends without any cleanup before each of its changes of files, until none is left before it serves."""
    layouts = set()
    for step in range(1, 60):
        data, ready = steps / str(step), tmp_path / f"ready-{step}"
        unpack(SAMPLE, STATE, data)
        command = [
            sys.executable,
            "-m",
            "tests.support.stop_at_step",
            str(data),
            str(step),
            "serve",
            "--data",
            str(data),
        ]
        command += ["--ready-file", str(ready), "--port", "0", "--http-port", "0"]
        for key, value in SETTINGS.items():
            command += ["--set", f"{key}={value}"]
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ)
        ) as process:
            while process.poll() is None and not ready.exists():
                time.sleep(0.01)
            if ready.exists():
                process.kill()
        if ready.exists():
            break
        assert process.returncode == STOPPED_EARLY
        layouts.add(layout(data))
        assert_all_there(data, steps / f"after-{step}")
        shutil.rmtree(steps / f"after-{step}")
    else:
        pytest.fail("the start never served")
    assert layouts == {EARLIER_LAYOUT, sqlite_table.LAYOUT_VERSION}


def test_restored_backup_of_an_earlier_layout_is_converted_by_its_first_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, backup, restored = (tmp_path / name for name in ("data", "backup", "restored"))
    unpack(SAMPLE, STATE, data)
    with monkeypatch.context() as earlier:
        # The version that knew layout 2 made the backup.
        earlier.setattr(sqlite_table, "LAYOUT_VERSION", EARLIER_LAYOUT)
        assert main(["backup", str(backup), "--data", str(data), "--quiet"]) == 0
    assert layout(data) == EARLIER_LAYOUT
    (point,) = (backup / "restore-points").iterdir()
    assert layout(point) == EARLIER_LAYOUT
    assert main(["backup", str(backup), "--verify"]) == 0
    assert main(["restore", str(backup), "--data", str(restored), "--quiet"]) == 0
    assert main(["backup", str(backup), "--verify"]) == 0
    assert layout(point) == EARLIER_LAYOUT
    (tmp_path / "after").mkdir()
    assert_all_there(restored, tmp_path / "after")
