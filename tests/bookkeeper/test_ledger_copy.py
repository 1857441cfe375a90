"""Topics are moved to bookies and back by the commands of the guide, with the official client before and after."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pulsar
import pytest
from tests.support.bookkeeper_cluster import BookKeeperCluster
from tests.support.broker_process import BrokerProcess
from tests.support.rest import call

from pybroker.local_store.data_directory import INCOMPLETE_COPY_NAME

pytestmark = pytest.mark.long
PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/move-to-bookkeeper.md"
NAMESPACE = "public/moved"
"""Takes the place of the page's namespace, which has topics of other tests on the same bookies."""
TOPIC = f"persistent://{NAMESPACE}/orders"
MESSAGES = int(os.environ.get("LEDGER_COPY_MESSAGES", "4000"))
BATCH = 10
COMMON = {
    "clusterName": "c1",
    "acknowledgmentAtBatchIndexLevelEnabled": "true",
    "managedLedgerMaxEntriesPerLedger": "50",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
}
TIMEOUT_MS = 20_000


class Guide:
    """Runs the commands of the page with the test's namespace and the address of its ZooKeeper, in its directory."""

    def __init__(self, directory: Path, cluster: BookKeeperCluster) -> None:
        self.directory = directory
        self._address = cluster.zookeeper.address
        text = self._own(PAGE.read_text(encoding="utf-8"))
        (configuration,) = re.findall(r"^```properties[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        (directory / "bookkeeper.conf").write_text(configuration)
        blocks = re.findall(r"^ *```bash\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
        self.commands = [line.split() for block in blocks for line in block.splitlines() if line.strip()]
        assert all(words[0] == "pybroker" for words in self.commands)

    def _own(self, text: str) -> str:
        return text.replace("127.0.0.1:2181", self._address).replace("public/default", NAMESPACE)

    def words(self, *parts: str) -> list[str]:
        """Return the one command of the page with these parts."""
        (found,) = [words for words in self.commands if all(part in " ".join(words) for part in parts)]
        return [sys.executable, "-m", *found]

    def run(self, *parts: str, more: tuple[str, ...] = (), expects: int = 0) -> str:
        command = [*self.words(*parts), *more]
        done = subprocess.run(command, cwd=self.directory, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == expects, done.stdout + done.stderr
        return done.stdout + done.stderr

    def run_killed(self, *parts: str, after_s: float) -> bool:
        """Run, and kill the process after some time. Return whether it was complete before."""
        process = subprocess.Popen(
            self.words(*parts), cwd=self.directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        try:
            process.communicate(timeout=after_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return False
        return process.returncode == 0


def client_of(broker: BrokerProcess) -> pulsar.Client:
    return pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


def subscribe(client: pulsar.Client, name: str) -> pulsar.Consumer:
    return client.subscribe(
        TOPIC,
        name,
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        batch_index_ack_enabled=True,
        receiver_queue_size=MESSAGES,
    )


def received(consumer: pulsar.Consumer, count: int) -> list[int]:
    """Return the next messages without acknowledging them."""
    return [int(consumer.receive(TIMEOUT_MS).data()) for _ in range(count)]


def nothing_more(consumer: pulsar.Consumer) -> bool:
    try:
        consumer.receive(1500)
    except pulsar.Timeout:
        return True
    return False


def test_guide_moves_topics_to_bookies_and_back(tmp_path: Path, cluster: BookKeeperCluster) -> None:
    guide = Guide(tmp_path, cluster)
    local = BrokerProcess(tmp_path, COMMON)
    with local.running_well():
        assert call(f"{local.http_url}/admin/v2/namespaces/{NAMESPACE}", "PUT").status == 204
        client = client_of(local)
        holes, begin = subscribe(client, "holes"), subscribe(client, "begin")
        producer = client.create_producer(
            TOPIC, batching_max_messages=BATCH, batching_max_publish_delay_ms=1000, block_if_queue_full=True
        )
        for number in range(MESSAGES):
            producer.send_async(b"%d" % number, lambda result, _: None)
        producer.flush()
        open_numbers = set(range(MESSAGES))
        for _ in range(MESSAGES):
            message = holes.receive(TIMEOUT_MS)
            number = int(message.data())
            if number < 500 or (number % 7 and number % 3):  # whole batches, and parts of batches
                holes.acknowledge(message)
                open_numbers.discard(number)
        time.sleep(1)
        guide.run("metadata init")
        assert "process" in guide.run("--dry-run", expects=2)
        client.close()
    assert begin is not None

    guide.run("export pybroker.metadata")
    guide.run("metadata init")
    guide.run("import pybroker.metadata")
    shown = guide.run("--dry-run")
    assert 'state="would be copied"' in shown
    assert "Message ids change" in shown
    copy = ("copy --to bookkeeper",)
    to_bookkeeper = [
        words for words in guide.commands if "bookkeeper" in words and "--dry-run" not in words and "copy" in words
    ]
    assert len(to_bookkeeper) == 1
    guide.commands = [words for words in guide.commands if "--dry-run" not in words]
    kills, after_s = 0, 0.9
    while not guide.run_killed(*copy, after_s=after_s):
        kills, after_s = kills + 1, after_s + 0.35
        time.sleep(0.2)
        assert kills < 40
    assert "already copied" in guide.run(*copy)
    assert "lost" not in guide.run("verify --config")

    url = f"zk:{cluster.zookeeper.address}"
    settings = {**COMMON, "metadataStoreUrl": url, "ledgerStore": "bookkeeper"}
    (tmp_path / "on-bookkeeper").mkdir()
    remote = BrokerProcess(tmp_path / "on-bookkeeper", settings)
    with remote.running_well():
        assert "Stop these brokers" in guide.run(*copy, expects=2)
        client = client_of(remote)
        consumer = subscribe(client, "holes")
        assert sorted(received(consumer, len(open_numbers))) == sorted(open_numbers)
        assert nothing_more(consumer)
        assert received(subscribe(client, "begin"), MESSAGES) == list(range(MESSAGES))
        producer = client.create_producer(TOPIC, batching_enabled=False)
        for number in range(MESSAGES, MESSAGES + 20):
            producer.send(b"%d" % number)
        client.close()
    assert "with other content" in guide.run(*copy, expects=2)

    guide.run("export back.metadata")
    guide.run("import back.metadata")
    back = ("copy --to local",)
    killed = not guide.run_killed(*back, after_s=1.2)
    if killed and (tmp_path / "data-back" / INCOMPLETE_COPY_NAME).exists():
        refused = subprocess.run(
            [sys.executable, "-m", "pybroker", "serve", "--data", str(tmp_path / "data-back")],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert refused.returncode != 0
    shown = guide.run(*back, more=("--json",))
    items = [json.loads(line) for line in shown.splitlines()]
    (found,) = [each for each in items if each.get("topic") == TOPIC]
    # A kill may come before, within or after the copy of this topic.
    assert found["state"] in ({"copied", "already copied"} if killed else {"already copied"})
    assert found["entries"] >= MESSAGES / BATCH + 20
    assert items[-1]["state"] == "complete"
    assert "no damage" in guide.run("verify data-back")
    again = BrokerProcess(tmp_path / "again", COMMON)
    again.directory.mkdir()
    again.data = tmp_path / "data-back"
    with again.running_well():
        client = client_of(again)
        expected = [*open_numbers, *range(MESSAGES, MESSAGES + 20)]
        assert sorted(received(subscribe(client, "holes"), len(expected))) == sorted(expected)
        client.close()
