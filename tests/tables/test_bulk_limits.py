"""Bulk reads by right, within their limits, and of clients that are slow, gone or wrong."""

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.clients.conftest import new_client
from tests.support.broker_process import BrokerProcess
from tests.support.rest import Answer, call
from tests.tables.stored import bodies_of, publish, ranges_of

from pybroker.client.access import Access
from pybroker.reading.read_options import SourceOptions
from pybroker.reading.transports.bulk_source import BulkSource

TOPIC = "persistent://public/default/t"
BASE = "/admin/v3/entries/persistent/public/default"
KEEPS_ALL = {"defaultRetentionTimeInMinutes": "-1", "defaultRetentionSizeInMB": "-1"}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, list[bytes]]]:
    """A broker of which two bulk reads take all the places, and 60 MB in a sealed ledger."""
    limits = {"maxConcurrentBulkReads": "2", "maxPendingBulkReads": "1", "bulkReadPendingTimeoutMs": "300"}
    directory = tmp_path_factory.mktemp("broker")
    process = BrokerProcess(directory, {**KEEPS_ALL, **limits, "httpWriteTimeoutMs": "2000"}).start()
    client = new_client(process.url)
    sent = publish(client, TOPIC, 600, size=100_000)
    client.close()
    assert process.stop() == 0
    process.start()
    yield process, sent
    assert process.stop() == 0


def source_of(broker: BrokerProcess) -> BulkSource:
    return BulkSource(SourceOptions(Access(broker.url, broker.http_url), patience_s=30))


def port_of(broker: BrokerProcess) -> int:
    return int(broker.http_url.rpartition(":")[2])


def stalled_reader(broker: BrokerProcess, ledger_id: int) -> socket.socket:
    """A connection that asks for everything and takes nothing."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(10)
    connection.connect(("127.0.0.1", port_of(broker)))
    connection.sendall(f"GET {BASE}/t/ledger/{ledger_id} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    assert connection.recv(12) == b"HTTP/1.1 200"
    return connection


def test_who_does_not_read_is_cut_and_others_wait_for_the_place(filled: tuple[BrokerProcess, list[bytes]]) -> None:
    broker, sent = filled
    source = source_of(broker)
    plan = source.plan(TOPIC)
    ledger_id = plan.ledgers[0].ledger_id
    stalled = [stalled_reader(broker, ledger_id) for _ in range(2)]
    refused = call(f"{broker.http_url}{BASE}/t/ledger/{ledger_id}?end=1")
    assert refused.status == 429
    assert "maxConcurrentBulkReads" in refused.json["reason"]
    # Somebody patient gets his turn when the others are cut.
    assert bodies_of(source, plan) == sent
    for connection in stalled:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        try:
            while connection.recv(1 << 20):
                pass
        except ConnectionResetError:
            pass
        connection.close()
    source.close()


def test_a_reader_that_goes_away_leaves_its_place(filled: tuple[BrokerProcess, list[bytes]]) -> None:
    broker, sent = filled
    source = source_of(broker)
    plan = source.plan(TOPIC)
    for _ in range(6):
        stalled_reader(broker, plan.ledgers[0].ledger_id).close()
    assert bodies_of(source, plan) == sent
    source.close()


def test_many_readers_at_once_each_see_everything(filled: tuple[BrokerProcess, list[bytes]]) -> None:
    broker, sent = filled
    right = []

    def read() -> None:
        source = source_of(broker)
        right.append(bodies_of(source, source.plan(TOPIC)) == sent)
        source.close()

    threads = [threading.Thread(target=read) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 6


def test_a_broker_that_is_killed_and_started_again_interrupts_no_read(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, KEEPS_ALL).start()
    client = new_client(broker.url)
    sent = publish(client, TOPIC, 300, size=100_000)
    client.close()
    assert broker.stop() == 0
    broker.start()
    source = source_of(broker)
    entries = ranges_of(source.plan(TOPIC))[0]
    runs = source.read(entries)
    count = next(runs).entry_count
    broker.kill()
    broker.start()
    count += sum(run.entry_count for run in runs)
    assert count == len(sent)
    source.close()
    broker.stop()


def answers(broker: BrokerProcess, method: str, path: str, body: object = None) -> Answer:
    return call(f"{broker.http_url}{path}", method, body=body)


def test_wrong_requests_are_refused_with_a_reason(filled: tuple[BrokerProcess, list[bytes]]) -> None:
    broker, _ = filled
    ledger_id = source_plan_ledger(broker)
    for query, status in [
        ("first=0&end=601", 416),
        ("first=5&end=5", 412),
        ("first=-1&end=5", 412),
        ("first=x", 404),
        (f"first={1 << 80}", 404),
        ("first=600", 412),
    ]:
        answer = answers(broker, "GET", f"{BASE}/t/ledger/{ledger_id}?{query}")
        assert (answer.status, bool(answer.json["reason"])) == (status, True), query
    for path, status in [
        (f"/t/ledger/{ledger_id + 999}?end=1", 410),
        ("/t/ledger/x", 404),
        (f"/nothing/ledger/{ledger_id}", 404),
        ("/../ledger/1", 404),
    ]:
        assert answers(broker, "GET", BASE + path).status == status, path
    for body, status in [
        ({}, 400),
        ({"topics": 5}, 400),
        ({"topics": [{"topic": "t", "start": [1]}]}, 400),
        ({"topics": [{"topic": "t", "start": ["a", "b"]}]}, 400),
        ({"topics": [{"topic": "t"}] * 2001}, 413),
        (None, 400),
    ]:
        assert answers(broker, "POST", BASE + "/plan", body).status == status, body
    strange = ["missing", "", "a/b", "x" * 9000, "t\x00", "t-partition-0"]
    shown = answers(broker, "POST", BASE + "/plan", {"topics": [{"topic": name} for name in strange]})
    assert shown.status == 200
    assert {each["status"] for each in shown.json["topics"]} <= {404, 412}
    huge = {"topics": [{"topic": "t", "start": [1 << 62, 1 << 62], "end": [-(1 << 62), 0], "publishTime": 1 << 62}]}
    assert answers(broker, "POST", BASE + "/plan", huge).json["topics"][0].get("ledgers", []) == []


def source_plan_ledger(broker: BrokerProcess) -> int:
    shown = answers(broker, "POST", BASE + "/plan", {"topics": [{"topic": "t"}]})
    ledger_id: int = shown.json["topics"][0]["ledgers"][0]["ledgerId"]
    return ledger_id


def test_a_head_request_says_how_much_there_is(filled: tuple[BrokerProcess, list[bytes]]) -> None:
    broker, _ = filled
    connection = http.client.HTTPConnection("127.0.0.1", port_of(broker), timeout=20)
    for _ in range(2):
        connection.request("HEAD", f"{BASE}/t/ledger/{source_plan_ledger(broker)}")
        response = connection.getresponse()
        assert (response.status, response.getheader("x-pybroker-next-entry")) == (200, "600")
        assert int(response.getheader("content-length") or 0) > 60_000_000
        assert response.read() == b""
    connection.close()


def test_a_namespace_gets_no_more_than_its_rate_and_others_all_of_theirs(tmp_path: Path) -> None:
    limited = {**KEEPS_ALL, "bulkReadThrottlingRatePerNamespaceInByte": "2000000"}
    with BrokerProcess(tmp_path, limited).running() as broker:
        client = new_client(broker.url)
        publish(client, TOPIC, 60, size=100_000)
        client.close()
        broker.stop()
        broker.start()
        source = source_of(broker)
        plan = source.plan(TOPIC)
        started_s = time.monotonic()
        assert len(bodies_of(source, plan)) == 60
        bodies_of(source, plan)
        # 12 MB in all, of which a slice may pass on credit.
        assert time.monotonic() - started_s >= 2
        source.close()
        metrics = call(f"{broker.http_url}/metrics").text
        assert "pybroker_http_bulk_read_throttled" in metrics
