"""Three Java brokers are replaced one by one by pybrokers at the same addresses, and back, while clients work."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from tests.bookkeeper.mixed_cluster import JAVA, OWN, Place, places_of, running, until, until_all_know_all
from tests.bookkeeper.mixed_load import BATCHED, KEYED, SINGLE, LoadedTopic, MixedLoad
from tests.support.bookkeeper_cluster import bookkeeper_cluster

pytestmark = pytest.mark.long
NAMESPACE = "public/default"
TOPICS = (
    LoadedTopic(
        f"persistent://{NAMESPACE}/plain", (SINGLE, BATCHED, KEYED), ("Exclusive", "Failover", "Shared", "Key_Shared")
    ),
    LoadedTopic(f"persistent://{NAMESPACE}/parted", (KEYED,), ("Failover", "Shared", "Key_Shared"), partitions=4),
    LoadedTopic(f"persistent://{NAMESPACE}/typed", (BATCHED, KEYED), ("Exclusive", "Key_Shared"), has_schema=True),
)


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


@contextmanager
def loaded(places: Sequence[Place]) -> Iterator[MixedLoad]:
    for topic in TOPICS:
        if topic.partitions:
            path = f"/admin/v2/persistent/{NAMESPACE}/{topic.local_name}/partitions"
            assert places[0].call("PUT", path, topic.partitions) == (204, None)
    load = MixedLoad([each.url for each in places], TOPICS)
    try:
        load.advance()
        yield load
        print(f"{load.finish()} receipts")
    finally:
        load.stop()


def replace(load: MixedLoad, places: Sequence[Place], place: Place, kind: str, number: signal.Signals) -> None:
    """Stop one broker, let the others serve its topics, and start the other kind at its address."""
    before = place.kind
    place.stop(number)
    without_s = load.advance(1)
    require_leader(places)
    place.start(kind)
    until_all_know_all(places)
    require_leader(places)
    took_s = load.advance()
    print(
        f"{place.name}: {before} ends with {number.name}, all clients advance after {without_s:.1f} s; {kind}: {took_s:.1f} s"
    )


def test_rolling_replacement_of_java_brokers_and_back_loses_nothing(places: list[Place]) -> None:
    for place in places:
        place.start(JAVA)
    until_all_know_all(places)
    require_leader(places)
    with loaded(places) as load:
        # The leader first, which is the first broker; the second one without a warning.
        for place, number in zip(places, (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM), strict=True):
            replace(load, places, place, OWN, number)
        for place, number in zip(places, (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM), strict=True):
            replace(load, places, place, JAVA, number)
    for place in places:
        assert "Traceback" not in place.own.log.read_text(), place.own.log
