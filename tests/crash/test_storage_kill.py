"""kill -9 of a process that uses the store: everything it was promised is there afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.crash.storage_appender import OPTIONS, delta, payload
from tests.unit.local_store.stores import read_all

from pybroker.local_store.local_store import LocalStore

CHECKOUT = Path(__file__).resolve().parents[2]


def run_and_kill(directory: Path, line_count: int) -> list[list[str]]:
    """Let the appender go on until it has told so many lines; the complete lines that it told."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.storage_appender", str(directory)],
        stdout=subprocess.PIPE,
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(CHECKOUT / "src"), str(CHECKOUT)))},
    )
    assert process.stdout is not None
    with process.stdout:
        told = b"".join(process.stdout.readline() for _ in range(line_count))
        process.send_signal(signal.SIGKILL)
        told += process.stdout.read()  # what it told before it died was promised as well
    process.wait()
    return [line.split() for line in told.decode().split("\n")[:-1]]


@pytest.mark.parametrize("line_counts", [(30, 200), (1000, 1500)])
async def test_what_was_completed_before_kill_9_is_there(tmp_path: Path, line_counts: tuple[int, ...]) -> None:
    completed: dict[int, int] = {}
    deltas = 0
    for round_number, line_count in enumerate(line_counts):
        told = run_and_kill(tmp_path, line_count)
        assert len(told) >= line_count
        new_ledgers = {int(words[1]) for words in told if words[0] == "L"}
        assert not new_ledgers & completed.keys(), "a ledger id was given twice"
        completed.update(dict.fromkeys(new_ledgers, 0))
        for words in told:
            if words[0] == "E":
                completed[int(words[1])] = max(completed[int(words[1])], int(words[2]))
        acknowledged = max((int(words[1]) for words in told if words[0] == "C"), default=0)

        store = await LocalStore.open(tmp_path, OPTIONS, lambda error: None)
        assert set(await store.list_ledgers()) >= completed.keys()
        for ledger_id, count in completed.items():
            found = await read_all(store, ledger_id)
            assert len(found) >= count, f"round {round_number}: ledger {ledger_id} lost entries"
            assert found == [payload(ledger_id, entry_id) for entry_id in range(len(found))]
        snapshot, found_deltas = await store.load("cursor")
        assert snapshot is None
        # Each round counts its deltas from 0; those of earlier rounds are still in front.
        assert found_deltas[deltas : deltas + acknowledged] == [delta(number) for number in range(acknowledged)]
        deltas = len(found_deltas)
        await store.close()
