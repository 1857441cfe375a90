"""A rolling restart of three brokers on real bookies, with the clients that `make service-gaps` measures."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from tests.bookkeeper.service_gaps import (
    DEADLINE_S,
    NAMESPACE,
    SHUTDOWN,
    SIGTERM,
    Load,
    divide,
    owners,
    rest,
    restart,
    running_brokers,
)
from tests.support.bookkeeper_cluster import BookKeeperCluster

pytestmark = [pytest.mark.long, pytest.mark.cluster]
TOPICS = 24
BUNDLES = 16
SESSION_MS = 30_000


def test_rolling_restart_moves_all_topics_and_loses_nothing(cluster: BookKeeperCluster, tmp_path: Path) -> None:
    more = {"managedLedgerDefaultEnsembleSize": "3"}
    with running_brokers("pybroker", 3, SESSION_MS, cluster, tmp_path, more) as brokers:
        rest("PUT", f"{brokers[0].http_url}/admin/v2/namespaces/{NAMESPACE}", {"bundles": {"numBundles": BUNDLES}})
        with closing(Load(brokers, TOPICS, 0.1, consumes=True)) as load:
            load.wait_for_receipts(0.0, DEADLINE_S)
            divide(brokers)
            for number, how in enumerate((SIGTERM, SHUTDOWN, SIGTERM)):
                before = owners(brokers, load.topics)
                done = restart(load, brokers, number, how)
                print(done.figures())
                moved = {topic for topic, url in before.items() if url == brokers[number].url}
                assert done.receipts.keys() == done.deliveries.keys() == moved
                assert moved
                after = owners(brokers, load.topics)
                assert {topic for topic in load.topics if after[topic] != before[topic]} == moved
            load.stop()
            assert not load.failures
            assert not load.undelivered()
            assert not load.disordered
    for log in tmp_path.glob("*/broker.log"):
        assert "Traceback" not in log.read_text(), log
