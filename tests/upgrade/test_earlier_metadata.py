"""Data directories and backups of metadata layout 2: the first start converts them, whatever interrupts it."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import subprocess
import sys
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
from pybroker.metadata.sqlite_metadata_store import SqliteMetadataStore

SAMPLE, STATE = "05-backup", "stopped"
EARLIER_LAYOUT = 2
STEPS_AFTER = 4
"""Steps of a start behind the conversion that are tested, too."""
START_DEADLINE_S = 120.0
CHANGED_BY_A_START = ("/local-store/journal-end", "/counters/producer-name", "/admin/clusters/standalone")


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


def documents(data: Path) -> dict[str, bytes]:
    """Return the documents, converted if they are not. The mark of the journal differs from run to run."""

    async def read() -> dict[str, bytes]:
        store = await SqliteMetadataStore.open(data / "metadata.db", mark=data / "metadata.end")
        found = {path: value.value for path, value in await store.values_below("/", "", 10_000)}
        await store.close()
        return found

    found = asyncio.run(read())
    return {path: value for path, value in found.items() if path not in CHANGED_BY_A_START}


@pytest.mark.long
def test_start_that_is_killed_at_any_step_of_the_conversion_is_repeated(tmp_path: Path) -> None:
    """A start ends without any cleanup before each of its changes of files, until the conversion is long complete."""
    unpack(SAMPLE, STATE, tmp_path / "whole")
    expected = documents(tmp_path / "whole")
    layouts: list[int] = []
    while layouts.count(sqlite_table.LAYOUT_VERSION) < STEPS_AFTER:
        step = len(layouts) + 1
        data = tmp_path / str(step)
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
        command += ["--port", "0", "--http-port", "0"]
        for key, value in SETTINGS.items():
            command += ["--set", f"{key}={value}"]
        ended = subprocess.run(command, capture_output=True, timeout=START_DEADLINE_S, check=False)
        assert ended.returncode == STOPPED_EARLY, ended.stderr.decode()
        layouts.append(layout(data))
        if layouts[-1] != layouts[step - 2]:
            (tmp_path / f"after-{step}").mkdir(OWNER_ONLY)
            assert_all_there(data, tmp_path / f"after-{step}")
        assert documents(data) == expected, step
        shutil.rmtree(data)
    assert layouts == sorted(layouts)
    assert set(layouts) == {EARLIER_LAYOUT, sqlite_table.LAYOUT_VERSION}


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
