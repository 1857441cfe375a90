"""Backup and restore of real brokers: what is promised, and bad input of each kind."""

import asyncio
import json
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash import stored_transactions
from tests.crash.backup_drill import backup, backup_command, newest_of, run_command, run_drill
from tests.support import rest
from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import connected
from tests.support.stop_at_step import STOPPED

TOPIC = "persistent://public/default/t"
SETTINGS = {"managedLedgerMaxEntriesPerLedger": "20", "managedLedgerMinLedgerRolloverTimeMinutes": "0"}
SNAPSHOTS = "/admin/v3/data-snapshots"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "backup"


@pytest.fixture
def loaded(broker: BrokerProcess) -> Iterator[BrokerProcess]:
    """A broker with 100 entries in several ledgers, and a subscription."""
    publish(broker, 100)
    yield broker
    assert "Traceback" not in broker.log.read_text()


def publish(broker: BrokerProcess, count: int, first: int = 0) -> None:
    with connected(broker) as client:
        client.subscribe(TOPIC, subscription="audit")
        client.open_producer(TOPIC)
        client.publish(1, count, first)


def call(broker: BrokerProcess, method: str, path: str, body: object = None) -> str:
    answer = rest.call(broker.http_url + path, method, body=body)
    assert answer.status < 300, answer
    return answer.text


def entry_count(broker: BrokerProcess) -> int:
    stats = json.loads(broker.get("/admin/v2/persistent/public/default/t/internalStats"))
    return int(stats["numberOfEntries"])


def restored(broker: BrokerProcess, target: Path, *arguments: object) -> BrokerProcess:
    """Lose the disk of the broker, restore it, and start it."""
    broker.kill()
    shutil.rmtree(broker.data)
    run_command("restore", target, "--data", broker.data, "--quiet", *arguments)
    return broker.start()


def test_drill_under_load_loses_no_receipt(tmp_path: Path) -> None:
    figures = run_drill(tmp_path, seed=7)
    assert figures["receipts"] > 100
    assert figures["acks"] > 10


@pytest.mark.long
def test_drills_under_load_lose_no_receipt(tmp_path: Path) -> None:
    for seed in (11, 12):
        directory = tmp_path / str(seed)
        directory.mkdir()
        run_drill(directory, seed)


@pytest.mark.long
def test_transactions_and_delayed_messages_survive_backup_and_restore(tmp_path: Path, target: Path) -> None:
    """The restored directory keeps the promises of a killed broker with open transactions and changed delays."""
    promised = stored_transactions.make(tmp_path)
    broker = BrokerProcess(tmp_path, stored_transactions.SETTINGS).start()
    backup(broker, target)
    broker.kill()
    directory = tmp_path / "restored"
    run_command("restore", target, "--data", directory, "--quiet")
    assert asyncio.run(stored_transactions.look(directory, promised)) == []


def test_restore_points_are_incremental_and_independent(loaded: BrokerProcess, target: Path) -> None:
    first = json.loads(backup(loaded, target, "--json"))
    publish(loaded, 50, first=100)
    second = json.loads(backup(loaded, target, "--json"))
    third = json.loads(backup(loaded, target, "--json"))
    assert first["copiedLedgers"] == first["ledgers"]
    assert second["copiedLedgers"] < second["ledgers"]
    assert third["copiedLedgers"] == 0, "nothing has changed"
    restored(loaded, target, "--point", first["restorePoint"])
    assert entry_count(loaded) == 100
    restored(loaded, target)
    assert entry_count(loaded) == 150
    publish(loaded, 10, first=150)  # positions continue
    assert entry_count(loaded) == 160
    # Its history differs from that of the backup now.
    assert "backup of another data directory, or of this data directory before a restore" in backup(
        loaded, target, code=1
    )
    listed = run_command("backup", target, "--list")
    assert all(each["restorePoint"] in listed for each in (first, second, third))


def test_schema_and_policies_are_restored(loaded: BrokerProcess, target: Path) -> None:
    schema = {
        "type": "JSON",
        "schema": '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}',
        "properties": {},
    }
    call(loaded, "POST", "/admin/v2/schemas/public/default/t/schema", schema)
    call(loaded, "POST", "/admin/v2/namespaces/public/default/maxProducersPerTopic", 7)
    backup(loaded, target)
    restored(loaded, target)
    assert json.loads(loaded.get("/admin/v2/schemas/public/default/t/schema"))["type"] == "JSON"
    assert loaded.get("/admin/v2/namespaces/public/default/maxProducersPerTopic") == "7"


def test_keep_deletes_old_restore_points_and_unused_ledgers(loaded: BrokerProcess, target: Path) -> None:
    call(
        loaded,
        "POST",
        "/admin/v2/namespaces/public/default/retention",
        {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0},
    )
    first = json.loads(backup(loaded, target, "--json"))["restorePoint"]
    before = set((target / "ledgers").iterdir())
    call(loaded, "DELETE", "/admin/v2/persistent/public/default/t?force=true")
    publish(loaded, 5)
    result = json.loads(backup(loaded, target, "--json", "--keep", "1"))
    assert result["deleted"] == [first]
    after = set((target / "ledgers").iterdir())
    assert before.isdisjoint(after)
    assert "1 restore points: no problems found" in run_command("backup", target, "--verify")
    restored(loaded, target)
    assert entry_count(loaded) == 5


def test_stopped_broker_can_be_backed_up(loaded: BrokerProcess, target: Path) -> None:
    assert "is in use by process" in run_command("backup", target, "--data", loaded.data, code=1)
    loaded.kill()
    assert "did not stop cleanly: start the broker again" in run_command(
        "backup", target, "--data", loaded.data, code=1
    )
    loaded.start()
    assert loaded.stop() == 0
    run_command("backup", target, "--data", loaded.data, "--quiet")
    loaded.start()
    assert json.loads(backup(loaded, target, "--json"))["copiedLedgers"] == 0, (
        "the running broker continues the same backup"
    )
    restored(loaded, target)
    assert entry_count(loaded) == 100


def test_snapshot_is_exclusive_renewable_and_expires(tmp_path: Path, target: Path) -> None:
    with BrokerProcess(tmp_path).running_well() as broker:
        snapshot = json.loads(call(broker, "POST", SNAPSHOTS))
        path = Path(snapshot["path"])
        assert path.is_dir()
        assert f"Data snapshot {snapshot['id']} exists" in backup(broker, target, code=1)
        assert json.loads(broker.get(SNAPSHOTS))[0]["id"] == snapshot["id"]
        timeout_ms = 300_000
        assert 0 < json.loads(call(broker, "PUT", f"{SNAPSHOTS}/{snapshot['id']}"))["expiresInMillis"] <= timeout_ms
        call(broker, "DELETE", f"{SNAPSHOTS}/{snapshot['id']}")
        assert not path.exists()
        assert rest.call(f"{broker.http_url}{SNAPSHOTS}/{snapshot['id']}", "PUT").status == 404
        call(broker, "POST", "/admin/v2/brokers/configuration/dataSnapshotTimeoutSeconds/1")
        path = Path(json.loads(call(broker, "POST", SNAPSHOTS))["path"])
        deadline = time.monotonic() + 60
        while path.exists() or broker.get(SNAPSHOTS) != "[]":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        call(broker, "DELETE", "/admin/v2/brokers/configuration/dataSnapshotTimeoutSeconds")
        left = Path(json.loads(call(broker, "POST", SNAPSHOTS))["path"])
        broker.kill()
        assert left.is_dir()
        broker.start()
        assert not left.exists(), "a start removes snapshots of earlier runs"
        backup(broker, target)


def test_backups_at_the_same_time_wait_for_no_one(loaded: BrokerProcess, target: Path) -> None:
    """One of several gets the snapshot; the others are refused and say until when."""
    runs = [
        subprocess.Popen(
            backup_command("backup", target, "--quiet", "--url", loaded.http_url),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    results = [(run.communicate(timeout=60), run.returncode) for run in runs]
    assert any(code == 0 for _, code in results), results
    assert all(code == 0 or "napshot" in errors for (_, errors), code in results), results
    run_command("backup", target, "--verify", "--quiet")


def test_ordinary_copy_of_a_live_directory_is_refused(loaded: BrokerProcess, tmp_path: Path) -> None:
    copied = tmp_path / "copied"
    shutil.copytree(loaded.data, copied)
    assert "is a copy, made while its broker ran" in run_command(
        "serve", "--data", copied, "--port", 0, "--http-port", 0, code=1
    )
    assert loaded.stop() == 0
    moved = BrokerProcess(tmp_path, SETTINGS)
    moved.data = tmp_path / "moved"
    shutil.copytree(loaded.data, moved.data)
    with moved.running():  # a copy of a stopped broker's directory is complete
        assert entry_count(moved) == 100
    # Killed, but not copied: it starts.
    loaded.start()
    loaded.kill()
    loaded.start()
    assert entry_count(loaded) == 100


def test_restore_refuses_unsuitable_directories(loaded: BrokerProcess, target: Path, tmp_path: Path) -> None:
    backup(loaded, target)
    assert "is not empty" in run_command("restore", target, "--data", loaded.data, code=1)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").touch()
    assert "is not empty (it contains thesis.txt)" in run_command("restore", target, "--data", foreign, code=1)
    assert "is neither empty nor a backup directory" in backup(loaded, foreign, code=1)
    assert "is not a backup directory" in run_command("restore", foreign, "--data", tmp_path / "new", code=1)
    assert "has no restore point 1. Restore points: 2" in run_command(
        "restore", target, "--data", tmp_path / "new", "--point", "1", code=1
    )
    assert not (tmp_path / "new").exists()
    assert "choose a directory outside" in backup(loaded, loaded.data / "backup", code=1)


def test_damaged_backup_is_reported_and_not_restored(loaded: BrokerProcess, target: Path, tmp_path: Path) -> None:
    point = newest_of(backup(loaded, target) and run_command("backup", target, "--list", "--json"))
    new = tmp_path / "new"
    manifest = target / "restore-points" / point / "manifest.json"
    victims = [
        min((target / "ledgers").iterdir()),
        *(manifest.with_name(name) for name in ("checkpoint.db", "manifest.json")),
    ]
    for victim in victims:
        whole = victim.read_bytes()
        changed = bytearray(whole)
        changed[len(changed) // 2] ^= 1
        for damage in (bytes(changed), whole[: len(whole) // 2], None):
            if damage is None:
                victim.unlink()
            else:
                victim.write_bytes(damage)
            if damage is not None or victim != manifest:  # without its manifest there is no restore point
                assert victim.name in run_command("backup", target, "--verify", "--quiet", code=1)
            assert victim.name in run_command("restore", target, "--data", new, "--quiet", code=1) or victim == manifest
            if new.exists():
                assert "contains an interrupted restore" in run_command("serve", "--data", new, code=1)
                shutil.rmtree(new)
            victim.write_bytes(whole)
    run_command("restore", target, "--data", new, "--quiet")
    run_command("ledger", "verify", new)


def test_full_target_leaves_earlier_restore_points(loaded: BrokerProcess, target: Path) -> None:
    first = newest_of(backup(loaded, target) and run_command("backup", target, "--list", "--json"))
    with connected(loaded) as client:
        client.open_producer(TOPIC)
        for number in range(10):
            client.send_message(1, number, bytes(100_000))
            client.reply()
    limited = subprocess.run(
        backup_command("backup", target, "--quiet", "--url", loaded.http_url),
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000)),
    )
    assert limited.returncode == 1
    assert "File too large; copied files are kept: repeat the command to continue" in limited.stderr
    assert loaded.get(SNAPSHOTS) == "[]", "the snapshot is released"
    assert newest_of(run_command("backup", target, "--list", "--json")) == first
    backup(loaded, target)
    assert "2 restore points: no problems found" in run_command("backup", target, "--verify", "--quiet")
    restored(loaded, target)
    assert entry_count(loaded) == 110


def test_backup_and_restore_stopped_at_any_step_can_be_repeated(
    loaded: BrokerProcess, target: Path, tmp_path: Path
) -> None:
    """Each process ends without cleanup before another step. The next one continues, whatever it finds."""
    url = ("--quiet", "--url", loaded.http_url)
    backup(loaded, target)
    steps = stopped_at_each_step(target, 3, ("backup", target, *url), loaded)
    assert steps > 10
    assert "problem" in run_command("backup", target, "--verify", "--quiet")
    new = tmp_path / "new"
    steps = stopped_at_each_step(new, 3, ("restore", target, "--data", new, "--quiet"), None)
    assert steps > 10
    run_command("ledger", "verify", new)
    restored(loaded, target)
    assert entry_count(loaded) >= 100


def stopped_at_each_step(
    directory: Path, stride: int, arguments: tuple[object, ...], broker: BrokerProcess | None
) -> int:
    """Run the command, stopped before step 1, 1 + stride, ... until it completes. Return the number of its last step."""
    step = 1
    while True:
        if broker is not None:
            publish(broker, 3)
            for snapshot in json.loads(broker.get(SNAPSHOTS)):
                call(broker, "DELETE", f"{SNAPSHOTS}/{snapshot['id']}")
        ended = subprocess.run(
            [sys.executable, "-m", "tests.support.stop_at_step", str(directory), str(step), *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode == 0:
            return step
        assert ended.returncode == STOPPED, ended.stderr
        step += stride
