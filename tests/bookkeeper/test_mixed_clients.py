"""The Java client and the Go client on two pybrokers and a Java broker, while topics move and brokers are replaced."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.bookkeeper.mixed_cluster import (
    JAVA,
    OWN,
    Place,
    make_namespace,
    mixed_places,
    move,
    require_lookups,
)
from tests.bookkeeper.mixed_load import (
    CheckedLoad,
    LoadedTopic,
    bundles_with_topics,
    loaded,
    replace,
    single_topics,
)
from tests.bookkeeper.program_load import go_load, java_load, topics_of_programs

pytestmark = [pytest.mark.long, pytest.mark.cluster]
BUNDLES = 4
Start = Callable[[Sequence[str], Sequence[LoadedTopic]], CheckedLoad]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Place]]:
    with mixed_places(tmp_path_factory.mktemp("mixed")) as places:
        yield places


@pytest.fixture(params=[("java", java_load), ("go", go_load)], ids=["java", "go"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Start]:
    """The name of a client, and the start of its load."""
    name, start = request.param
    return name, start(tmp_path)


def test_topics_move_between_all_brokers(places: list[Place], client: tuple[str, Start]) -> None:
    name, start = client
    java, first, second = places
    namespace = f"public/moved-{name}"
    make_namespace(java, namespace, BUNDLES)
    topics = topics_of_programs(namespace)
    with loaded(places, topics, start) as load:
        bundles = bundles_with_topics(java, topics)
        for bundle in bundles:
            move(places, java, namespace, bundle, java)
        moves = [(java, first), (first, second), (second, java), (java, second), (second, first), (first, java)]
        for number, (source, destination) in enumerate(moves):
            asked = places[number % len(places)]
            for bundle in bundles:
                move(places, asked, namespace, bundle, destination)
            assert {require_lookups(places, topic) for topic in single_topics(topics)} == {destination}
            print(f"{source} to {destination}, asked of {asked}: all clients advance after {load.advance():.1f} s")
        # The bundles at different brokers, and unloads without a destination.
        for number, bundle in enumerate(bundles):
            move(places, places[number % 3], namespace, bundle, places[number % 3])
        for asked in places:
            assert asked.call("PUT", f"/admin/v2/namespaces/{namespace}/unload") == (204, None)
            print(f"unload asked of {asked}: all clients advance after {load.advance():.1f} s")


def test_brokers_are_replaced_one_by_one(places: list[Place], client: tuple[str, Start]) -> None:
    """Java by pybroker, pybroker by Java, and back."""
    name, start = client
    java, first, _ = places
    namespace = f"public/replaced-{name}"
    make_namespace(java, namespace, BUNDLES)
    with loaded(places, topics_of_programs(namespace), start) as load:
        replace(load, places, java, OWN, signal.SIGTERM)
        replace(load, places, first, JAVA, signal.SIGKILL)
        replace(load, places, first, OWN, signal.SIGTERM)
        replace(load, places, java, JAVA, signal.SIGKILL)
    for place in places:
        assert "Traceback" not in place.own.log.read_text(), place.own.log
