"""What an operator sees while bookies fail, with the official client publishing: explain, readiness, metrics, log."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pulsar
import pytest
from tests.support.alert_rules import alert_rules, is_about_bookies
from tests.support.bookkeeper_cluster import Bookie, BookKeeperCluster, bookkeeper_cluster
from tests.support.broker_process import BrokerProcess
from tests.support.promql import labels_of_page, problems

pytestmark = [pytest.mark.long, pytest.mark.cluster]
TOPIC = "persistent://public/default/watched"
EXPLAIN = "/admin/v2/persistent/public/default/watched/explain"
DEADLINE_S = 60.0
T = TypeVar("T")


def eventually(get: Callable[[], T], holds: Callable[[T], bool]) -> T:
    deadline = time.monotonic() + DEADLINE_S
    while not holds(found := get()):
        assert time.monotonic() < deadline, found
        time.sleep(0.2)
    return found


@pytest.fixture
def own_cluster() -> Iterator[BookKeeperCluster]:
    with bookkeeper_cluster(3, {"zkTimeout": 4000}) as started:
        yield started


class Operator:
    """Looks at a broker."""

    def __init__(self, directory: Path, cluster: BookKeeperCluster) -> None:
        url = f"zk:{cluster.zookeeper.address}"
        command = [
            sys.executable,
            "-m",
            "pybroker",
            "metadata",
            "init",
            "--cluster",
            "c1",
            "--set",
            f"metadataStoreUrl={url}",
        ]
        subprocess.run(command, check=True, capture_output=True)
        settings = {
            "metadataStoreUrl": url,
            "ledgerStore": "bookkeeper",
            "clusterName": "c1",
            "bookkeeperClientTimeoutInSeconds": "3",
            "systemTopicEnabled": "false",
        }
        self.broker = BrokerProcess(directory, settings)

    def findings(self, path: str = EXPLAIN) -> dict[str, dict[str, Any]]:
        return {each["code"]: each for each in json.loads(self.broker.get(path))["findings"]}

    def until(self, code: str, path: str = EXPLAIN) -> dict[str, Any]:
        try:
            return eventually(lambda: self.findings(path), lambda found: code in found)[code]
        except AssertionError as error:
            raise AssertionError(f"{code} is not found: {self.broker.log.read_text()[-4000:]}") from error

    def of_broker(self) -> dict[str, dict[str, Any]]:
        return {each["code"]: each for each in json.loads(self.broker.get("/admin/v3/explain"))["broker"]}

    def metric(self, sample: str) -> float:
        lines = self.broker.get("/metrics/").splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(sample)), 0.0)

    def ready(self) -> tuple[int, str]:
        try:
            return 200, self.broker.get("/ready")
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def conditions(self, finding: dict[str, Any]) -> dict[str, str]:
        return {each["bookie"]: each["condition"] for each in finding["evidence"]["bookies"]}


def force_read_only(bookie: Bookie) -> None:
    bookie.kill()
    with (bookie.directory / "bookie.conf").open("a") as settings:
        settings.write("forceReadOnlyBookie=true\n")
    bookie.start()


def test_operator_sees_frozen_killed_and_read_only_bookies(tmp_path: Path, own_cluster: BookKeeperCluster) -> None:
    operator = Operator(tmp_path, own_cluster)
    broker, bookies = operator.broker, own_cluster.bookies
    receipts: list[pulsar.Result] = []
    with broker.running_well():
        client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        consumer = client.subscribe(TOPIC, "s")
        producer = client.create_producer(TOPIC, batching_enabled=False, send_timeout_millis=120_000)
        producer.send(b"0")
        consumer.acknowledge(consumer.receive(10_000))
        usable = 'pybroker_bookies{cluster="c1",condition="usable"}'
        assert operator.metric(usable) == 3
        assert operator.of_broker() == {}
        assert operator.metric('pulsar_storage_size{cluster="c1",namespace="public/default"') == 2 * operator.metric(
            'pulsar_storage_logical_size{cluster="c1",namespace="public/default"'
        )
        assert (
            operator.metric(
                'pulsar_managedLedger_client_bookkeeper_client_ADD_ENTRY_count{cluster="c1",success="true"}'
            )
            >= 1
        )
        listed = json.loads(broker.get("/admin/v2/bookies/all"))["bookies"]
        assert {each["bookieId"] for each in listed} == {each.bookie_id for each in bookies}
        assert json.loads(broker.get("/admin/v2/bookies/racks-info")) == {}

        labels = labels_of_page(broker.get("/metrics/"))
        rules = [rule for rule in alert_rules() if is_about_bookies(rule)]
        assert len(rules) == 5
        for rule in rules:
            shown_labels = set(re.findall(r"\$labels\.(\w+)", " ".join(rule.annotations.values())))
            assert problems(rule.expression, shown_labels, labels) == [], rule.name

        # Two of three are frozen: no ensemble of two answers.
        frozen = {each.bookie_id for each in bookies[:2]}
        for each in bookies[:2]:
            each.freeze()
        for number in range(1, 6):
            producer.send_async(b"%d" % number, lambda result, _: receipts.append(result))
        found = operator.until("ack-quorum-unreachable")
        assert "5 entries wait" in found["sentence"]
        found = eventually(operator.findings, lambda all_: "unreachable" in json.dumps(all_))["ack-quorum-unreachable"]
        assert set(operator.conditions(found)) <= frozen
        assert found["evidence"]["pendingEntries"] == 5
        assert receipts == []
        assert operator.metric('pybroker_store_bookkeeper_oldest_append_seconds{cluster="c1"}') > 1
        for each in bookies[:2]:
            each.wake()
        eventually(lambda: list(receipts), lambda all_: len(all_) == 5)
        assert set(receipts) == {pulsar.Result.Ok}
        eventually(operator.findings, lambda all_: not any(each["waits"] for each in all_.values()))
        eventually(lambda: operator.metric(usable), lambda count: count == 3)

        # Two are killed: fewer are registered than an ensemble needs.
        for each in bookies[:2]:
            each.kill()
        receipts.clear()
        for number in range(6, 9):
            producer.send_async(b"%d" % number, lambda result, _: receipts.append(result))
        for _ in range(3):
            consumer.acknowledge(consumer.receive(10_000))
        operator.until("bookies-too-few")
        found = eventually(
            lambda: operator.until("bookies-too-few"),
            lambda found: list(operator.conditions(found).values()) == ["unregistered"] * 2,
        )
        assert found["evidence"]["writable"] == 1
        assert "3 entries wait" in found["sentence"]
        assert set(operator.of_broker()) == {"bookies-too-few"}
        status, reason = operator.ready()
        assert (status, "needs 2 bookies" in reason) == (503, True)
        assert operator.metric('pybroker_bookies_writable{cluster="c1"}') == 1
        assert len(json.loads(broker.get("/admin/v2/bookies/all"))["bookies"]) == 3
        of_cursor = operator.until("cursor-writes-wait", EXPLAIN.replace("/explain", "/subscription/s/explain"))
        assert "Acknowledgements of subscription s have not been stored" in of_cursor["sentence"]
        shown = subprocess.run(
            [sys.executable, "-m", "pybroker", "explain", "--url", broker.http_url],
            check=False,
            capture_output=True,
            text=True,
        )
        assert "[bookies-too-few]" in shown.stdout

        broker.restart_after_kill()
        found = operator.until("recovery-lacks-bookies")
        assert len(operator.conditions(found)) == 2
        for each in bookies[:2]:
            each.start(waits=False)
        for each in bookies[:2]:
            each.wait()
        eventually(lambda: list(receipts), lambda all_: len(all_) == 3)
        assert set(receipts) == {pulsar.Result.Ok}
        eventually(operator.ready, lambda answer: answer[0] == 200)
        names: set[bytes] = set()
        while len(names) < 8 - 3 and b"8" not in names:
            message = consumer.receive(30_000)
            names.add(message.data())
            consumer.acknowledge(message)

        force_read_only(bookies[0])
        read_only = {bookies[0].bookie_id: "read-only"}
        eventually(
            operator.of_broker,
            lambda all_: "bookies-not-usable" in all_ and operator.conditions(all_["bookies-not-usable"]) == read_only,
        )
        producer.send(b"9")
        assert operator.ready()[0] == 200
        client.close()
    log = broker.log.read_text()
    assert log.count("bookie.not_usable") <= 14  # one for each change of a condition
    assert log.count("bookies.too_few") <= 2
