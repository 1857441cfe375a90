"""`kill -9` while topics are compacted: readers see the old view or the new one, and nothing is left over."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pulsar
import pytest
from tests.clients.conftest import new_client, until
from tests.clients.test_compaction import admin, compact, keep_everything, publish, read
from tests.support.broker_process import BrokerProcess

SETTINGS = {
    "managedLedgerMaxEntriesPerLedger": "200",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "retentionCheckIntervalInSeconds": "1",
}
TOPIC = "persistent://public/default/compacted"
ROUNDS = 8
KEYS = 150
BATCHING = {"batching_enabled": True, "batching_max_messages": 11}


def table(client: pulsar.Client) -> dict[str, bytes]:
    """What a table view has, and that no key stands in the view twice."""
    found: dict[str, bytes] = {}
    for key, value in read(client, TOPIC):
        if key:
            found.pop(key, None)
            if value:
                found[key] = value
    return found


def times_tidied(broker: BrokerProcess) -> int:
    """How often ledgers without a name were deleted: once after each start, in the background."""
    return broker.log.read_text().count("orphaned_ledgers.deleted")


@pytest.mark.parametrize("seed", [1, 2])
def test_a_kill_at_any_moment_leaves_one_view_and_no_garbage(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    wanted: dict[str, bytes] = {}
    broker = BrokerProcess(tmp_path, SETTINGS).start()
    try:
        keep_everything(broker, TOPIC)
        for round_number in range(ROUNDS):
            client = new_client(broker.url)
            messages = []
            for _ in range(1500):
                key, value = f"k{dice.randrange(KEYS)}", b"" if dice.random() < 0.1 else b"%d" % dice.randrange(10**6)
                messages.append((key, value))
                wanted.pop(key, None)
                if value:
                    wanted[key] = value
            publish(client, TOPIC, *messages, **BATCHING)
            client.close()
            assert admin(broker, "PUT", TOPIC, "compaction").status == 204
            time.sleep(dice.random() * 0.25)
            broker.kill()
            tidied_count = times_tidied(broker)
            broker.start()
            client = new_client(broker.url)
            assert table(client) == wanted, f"round {round_number}, seed {seed}"
            client.close()
        until(lambda: times_tidied(broker) > tidied_count)
        compact(broker, TOPIC)
        client = new_client(broker.url)
        last = read(client, TOPIC)
        assert {key: value for key, value in last if key} == wanted
        assert len([key for key, _ in last if key]) == len(wanted), "a key twice"
        client.close()
    finally:
        assert broker.stop() == 0
    verified = subprocess.run(
        [sys.executable, "-m", "pybroker", "ledger", "verify", str(broker.data)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert verified.returncode == 0, verified.stdout
    assert "orphaned" not in verified.stdout
