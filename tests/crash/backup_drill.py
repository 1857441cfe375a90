"""Backup drills: a broker under load is backed up, its disk is lost, and the restored broker is compared with every receipt.

    python -m tests.crash.backup_drill --drills 50     (make backup-drills)

A drill takes several restore points while clients of many kinds publish and acknowledge, while topics are created, trimmed and
deleted, and while the broker is killed between backups. Then the data directory is removed. Each restore point of the last backup
directory is restored: every message and every acknowledgement with a receipt before that backup began must be there.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tests.crash.mixed_load import Promises
from tests.crash.test_kill_loop import (
    NAMES,
    SETTINGS,
    Cycle,
    check_acknowledgements,
    check_nothing_lost,
    create_audits,
    wait_for_progress,
)
from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import RawClient

CHURNED_TOPICS = 6
BACKUPS = 3


@dataclass
class Restorable:
    """One restore point, and what clients had been promised when its backup began."""

    point: str
    promises: dict[str, Promises]


def backup_command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "pybroker", *map(str, arguments)]


def run_command(*arguments: object, code: int = 0) -> str:
    """Run `pybroker`; return its output, with its errors if a failure is expected."""
    ended = subprocess.run(backup_command(*arguments), capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == code, f"{arguments}: {ended.returncode}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout + ended.stderr if code else ended.stdout


def backup(broker: BrokerProcess, target: Path, *arguments: object, code: int = 0) -> str:
    return run_command("backup", target, "--quiet", "--url", broker.http_url, *arguments, code=code)


class TopicChurn:
    """Creates topics, publishes to them and deletes them, until `stop`, so that ledgers come and go during backups."""

    def __init__(self, broker: BrokerProcess, seed: int) -> None:
        self._broker = broker
        self._random = Random(seed)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.deleted = 0
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._stopped.is_set():
            name = f"churn-{number % CHURNED_TOPICS}"
            number += 1
            with contextlib.suppress(OSError, AssertionError, KeyError):  # the broker was killed
                client = RawClient(self._broker.url)
                try:
                    client.connect()
                    client.open_producer(f"persistent://public/default/{name}")
                    client.publish(1, self._random.randrange(1, 30))
                finally:
                    client.close()
                self._delete(name)
            self._stopped.wait(0.02)

    def _delete(self, name: str) -> None:
        request = urllib.request.Request(
            f"{self._broker.http_url}/admin/v2/persistent/public/default/{name}?force=true", method="DELETE"
        )
        with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(request, timeout=5):
            self.deleted += 1


def run_drill(directory: Path, seed: int) -> dict[str, Any]:
    """One drill. Raises AssertionError for a broken promise; returns figures."""
    random = Random(seed)
    broker = BrokerProcess(directory, {**SETTINGS, "defaultRetentionTimeInMinutes": "0"}).start()
    promises = {name: Promises(f"persistent://public/default/{name}") for name in NAMES}
    target = directory / "backup"
    points: list[Restorable] = []
    began_s = time.monotonic()
    try:
        create_audits(broker.url, promises)
        for number in range(BACKUPS):
            cycle = Cycle(broker.url, promises, number)
            churn = TopicChurn(broker, seed + number)
            wait_for_progress(promises, random.randrange(50, 800))
            before = copy_of(promises)
            backup(broker, target)
            name = run_command("backup", target, "--list", "--json")
            points.append(Restorable(newest_of(name), before))
            wait_for_progress(promises, random.randrange(1, 200))
            broker.kill()
            churn.stop()
            cycle.end()
            broken = [text for each in promises.values() for text in each.broken]
            assert not broken, broken[:5]
            if number < BACKUPS - 1:
                broker.start()
    finally:
        broker.stop()
    shutil.rmtree(broker.data)
    run_command("backup", target, "--verify", "--quiet")
    for restorable in points:
        run_command("restore", target, "--data", broker.data, "--point", restorable.point, "--quiet")
        broker.start()
        try:
            for name, each in restorable.promises.items():
                each.maybe_acked = promises[name].maybe_acked
                each.maybe_acked_up_to = promises[name].maybe_acked_up_to
                check_nothing_lost(broker.url, each)
                check_acknowledgements(broker.url, each)
        finally:
            assert broker.stop() == 0
        shutil.rmtree(broker.data)
    last = points[-1].promises.values()
    return {
        "receipts": sum(len(each.receipted) for each in last),
        "acks": sum(len(each.acked) for each in last),
        "seconds": round(time.monotonic() - began_s, 1),
    }


def copy_of(promises: dict[str, Promises]) -> dict[str, Promises]:
    """The promises at this moment, while clients continue."""
    copies = {}
    for name, each in promises.items():
        own = copies[name] = copy.copy(each)
        own.receipted, own.acked = dict(each.receipted), set(each.acked)
        own.sent, own.broken = {}, []
        own._bodies = {}
    return copies


def newest_of(listed: str) -> str:
    return str(json.loads(listed)[-1]["restorePoint"])


def main() -> int:
    parser = argparse.ArgumentParser(description="Backup drills under load.")
    parser.add_argument("--drills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for seed in range(options.seed, options.seed + options.drills):
        with tempfile.TemporaryDirectory() as directory:
            print(f"drill {seed}: {run_drill(Path(directory), seed)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
