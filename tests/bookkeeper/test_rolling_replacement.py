"""Three Java brokers are replaced one by one by pybrokers at the same addresses, and back, while clients work."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from tests.bookkeeper.mixed_cluster import JAVA, OWN, Place, places_of, require_leader, until_all_know_all
from tests.bookkeeper.mixed_load import loaded, replace, topics_of
from tests.support.bookkeeper_cluster import bookkeeper_cluster

pytestmark = [pytest.mark.long, pytest.mark.cluster]
NAMESPACE = "public/default"


@pytest.fixture
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Place]]:
    with bookkeeper_cluster(3) as cluster, places_of(cluster, tmp_path_factory.mktemp("rolling"), 3, {}) as places:
        yield places


def test_rolling_replacement_of_java_brokers_and_back_loses_nothing(places: list[Place]) -> None:
    """The order of docs/cluster/java-brokers.md: the Java broker that leads is replaced last."""
    leader, second, third = places
    for place in places:
        place.start(JAVA)
    until_all_know_all(places)
    require_leader(places)
    assert second.leader() == leader.broker_id
    with loaded(places, topics_of(NAMESPACE)) as load:
        for place, number in ((second, signal.SIGTERM), (third, signal.SIGKILL), (leader, signal.SIGTERM)):
            replace(load, places, place, OWN, number)
        for place, number in ((leader, signal.SIGTERM), (second, signal.SIGKILL), (third, signal.SIGTERM)):
            replace(load, places, place, JAVA, number)
    for place in places:
        assert "Traceback" not in place.own.log.read_text(), place.own.log
