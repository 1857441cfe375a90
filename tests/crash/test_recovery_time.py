"""`kill -9` in the middle of a large backlog, and with very many holes: nothing is missing, nothing comes twice.

How long the restarts take is measured by the cases `recovery*` and `holes*` of the benchmarks; here it is not looked at.
"""

from pathlib import Path

import pytest
from benchmarks import cases, holes, load
from benchmarks.brokers import Broker
from tests.support.broker_process import BrokerProcess

from pybroker.wire import pulsar_api_pb2 as pb

pytestmark = pytest.mark.long

TIMEOUT_S = 300.0
TOPIC = "persistent://public/default/backlog"


def address(process: BrokerProcess) -> Broker:
    return Broker("pybroker", process.url, process.http_url)


def publish_and_kill(process: BrokerProcess, entries: int) -> int:
    """Kill the broker in the middle of a flood, behind `entries` receipts; returns how many there were."""
    cases.open_subscriber_without_permits(address(process), TOPIC).close()
    publisher = cases.open_publisher(address(process), TOPIC, 1024, cases.WINDOW_MESSAGES)
    load.run([publisher], lambda: publisher.receipted_entries >= entries, TIMEOUT_S)
    process.kill()
    while True:  # what it had said before it died counts as well
        try:
            publisher.wait_and_read(TIMEOUT_S)
        except (load.LoadError, ConnectionError):
            publisher.link.close()
            return publisher.receipted_entries


def receive_backlog(process: BrokerProcess, entries: int) -> list[tuple[int, int]]:
    """The positions of at least `entries` entries, in the order in which they come."""
    link = load.Link(process.url)
    link.subscribe(TOPIC, cases.SUBSCRIPTION, pb.CommandSubscribe.Exclusive, consumer_id=1)
    witness = load.Witness(link)
    load.run([witness], lambda: witness.received >= entries, TIMEOUT_S)
    witness.note_rest()
    link.close()
    return witness.positions


@pytest.mark.parametrize(
    ("entries", "settings"),
    [
        pytest.param(1_000_000, {}, id="a million entries"),
        # Without checkpoints: the journal is as full as it may be.
        pytest.param(230_000, {"checkpointMaxBytes": str(1 << 30), "checkpointMaxEntries": str(1 << 30)}, id="journal"),
    ],
)
def test_a_backlog_that_was_killed_comes_back_whole_and_in_order(
    tmp_path: Path, entries: int, settings: dict[str, str]
) -> None:
    process = BrokerProcess(tmp_path, settings)
    with process.running():
        receipted = publish_and_kill(process, entries)
        process.start()
        positions = receive_backlog(process, receipted)
    assert len(positions) >= receipted
    assert positions == sorted(set(positions))
    # One ledger at a time without gaps: as many as were received up to the last one.
    last_entry_ids = dict(positions)
    assert sum(entry_id + 1 for entry_id in last_entry_ids.values()) == len(positions)


@pytest.mark.parametrize(("subscriptions", "hole_count"), [(100, 10_000), (1, 1_000_000)])
def test_no_hole_is_forgotten(tmp_path: Path, subscriptions: int, hole_count: int) -> None:
    process = BrokerProcess(tmp_path)
    with process.running():
        holes.make(address(process), TOPIC, subscriptions, hole_count)
        process.restart_after_kill()
        for number in range(subscriptions):
            holes.check(address(process), TOPIC, number, hole_count)
