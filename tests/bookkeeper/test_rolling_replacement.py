"""Three Java brokers are replaced one by one by pybrokers at the same addresses, and back, while clients work."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence

import pytest
from tests.bookkeeper.mixed_cluster import JAVA, OWN, Place, move, places_of, running, until, until_all_know_all
from tests.bookkeeper.mixed_load import MixedLoad, bundles_with_topics, loaded
from tests.support.bookkeeper_cluster import bookkeeper_cluster

pytestmark = [pytest.mark.long, pytest.mark.cluster]
NAMESPACE = "public/default"


@pytest.fixture
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Place]]:
    with bookkeeper_cluster(3) as cluster, places_of(cluster, tmp_path_factory.mktemp("rolling"), 3, {}) as places:
        yield places


def require_leader(places: Sequence[Place]) -> None:
    """Wait until all brokers know one leader: a Java broker while one is registered."""
    live = running(places)
    possible = {each.broker_id for each in live if each.kind == JAVA} or {each.broker_id for each in live}

    def known() -> set[str | None]:
        return {each.leader() for each in live}

    until(lambda: len(known()) == 1 and known() <= possible, lambda: f"leaders {known()}, expected one of {possible}")


def replace(load: MixedLoad, places: Sequence[Place], place: Place, kind: str, number: signal.Signals) -> None:
    """Stop one broker that owns topics, let the others serve them, and start the other kind at its address."""
    before = place.kind
    for bundle in bundles_with_topics(place, NAMESPACE)[:2]:
        move(places, place, NAMESPACE, bundle, place)
    load.advance()
    place.stop(number)
    without_s = load.advance(1)
    require_leader(places)
    place.start(kind)
    until_all_know_all(places)
    require_leader(places)
    took_s = load.advance()
    end = f"{before} ends with {number.name}"
    print(f"{place.name}: {end}, all clients advance after {without_s:.1f} s; {kind} starts: {took_s:.1f} s")


def test_rolling_replacement_of_java_brokers_and_back_loses_nothing(places: list[Place]) -> None:
    """The order of docs/cluster/java-brokers.md: the Java broker that leads is replaced last."""
    leader, second, third = places
    for place in places:
        place.start(JAVA)
    until_all_know_all(places)
    require_leader(places)
    assert second.leader() == leader.broker_id
    with loaded(places, NAMESPACE) as load:
        for place, number in ((second, signal.SIGTERM), (third, signal.SIGKILL), (leader, signal.SIGTERM)):
            replace(load, places, place, OWN, number)
        for place, number in ((leader, signal.SIGTERM), (second, signal.SIGKILL), (third, signal.SIGTERM)):
            replace(load, places, place, JAVA, number)
    for place in places:
        assert "Traceback" not in place.own.log.read_text(), place.own.log
