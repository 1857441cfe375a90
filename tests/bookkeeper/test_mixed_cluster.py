"""One Java broker and two pybrokers share the topics of a real ZooKeeper and real bookies."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.bookkeeper.mixed_cluster import (
    BROKERS,
    JAVA,
    OWN,
    Place,
    make_namespace,
    mixed_places,
    move,
    require_lookups,
    transfer,
    until,
    until_all_know_all,
)
from tests.bookkeeper.mixed_load import bundles_with_topics, loaded, single_topics, topics_of

pytestmark = [pytest.mark.long, pytest.mark.cluster]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Place]]:
    with mixed_places(tmp_path_factory.mktemp("mixed")) as places:
        yield places


def test_lookups_at_each_broker_lead_to_the_owner(places: list[Place]) -> None:
    namespace = "public/lookups"
    make_namespace(places[1], namespace, 12)
    java = places[0]
    for place in places:
        until(lambda place=place: place.leader() == java.broker_id)  # type: ignore[misc]
    bundle_of: dict[str, str] = {}
    for number in range(60):  # the first lookup of a bundle is asked of each broker in turn
        topic = f"persistent://{namespace}/t{number}"
        bundle = places[number % 3].get(f"/lookup/v2/topic/persistent/{namespace}/t{number}/bundle")
        assert all(each.get(f"/lookup/v2/topic/persistent/{namespace}/t{number}/bundle") == bundle for each in places)
        if bundle not in bundle_of.values():
            asked = places[len(bundle_of) % 3]
            first = asked.owner_over_protocol(topic) if number % 2 else asked.owner_over_http(topic)
            assert require_lookups(places, topic).url == first
            bundle_of[topic] = bundle
    assert len(bundle_of) == 12
    topics = list(bundle_of)
    for number, topic in enumerate(topics):
        transfer(places[number % 3], namespace, bundle_of[topic], places[number // 3 % 3])
        assert require_lookups(places, topic) is places[number // 3 % 3]
    # An owned bundle is answered with the owner's address at once, by every broker.
    for topic in topics:
        owner = require_lookups(places, topic)
        for place in places:
            answer = place.lookup(topic)
            assert (answer["response"], answer["brokerServiceUrl"]) == ("Connect", owner.url)
    # Calls for metadata and lists have the same answer everywhere.
    for number, place in enumerate(places):
        path = f"/admin/v2/persistent/{namespace}/p{number}/partitions"
        assert place.call("PUT", path, number + 2) == (204, None)
        until(lambda path=path, number=number: all(each.get(path)["partitions"] == number + 2 for each in places))  # type: ignore[misc]
        assert [each.partitions(f"persistent://{namespace}/p{number}") for each in places] == [number + 2] * 3
    lists = [place.topics(namespace) for place in places]
    assert len(lists[0]) == 2 + 3 + 4
    assert lists == [lists[0]] * 3


def test_bundles_move_between_all_brokers_while_clients_work(places: list[Place]) -> None:
    """Each broker is asked for each kind of move: Java to pybroker, back, and between pybrokers."""
    java, first, second = places
    namespace = "public/moving"
    make_namespace(java, namespace, 4)
    moves = [(java, first), (first, second), (second, java), (java, second), (second, first), (first, java)]
    topics = topics_of(namespace)
    with loaded(places, topics) as load:
        bundles = bundles_with_topics(java, topics)
        for bundle in bundles:
            move(places, java, namespace, bundle, java)
        for asked in places:
            for source, destination in moves:
                attempts = [move(places, asked, namespace, bundle, destination) for bundle in bundles]
                for topic in single_topics(topics):
                    assert require_lookups(places, topic) is destination
                took_s = load.advance()
                print(f"{source} to {destination}, asked of {asked}: {took_s:.1f} s, attempts {attempts}")
        # The bundles of one namespace at different brokers, and an unload of all of them.
        for number, bundle in enumerate(bundles):
            move(places, places[number % 3], namespace, bundle, places[number % 3])
        load.advance()
        for asked in places:
            assert asked.call("PUT", f"/admin/v2/namespaces/{namespace}/unload") == (204, None)
            load.advance()


@pytest.mark.parametrize("victim", [0, 1], ids=[JAVA, OWN])
def test_kill_of_an_owner_loses_nothing(places: list[Place], victim: int) -> None:
    killed = places[victim]
    others = [each for each in places if each is not killed]
    kind = killed.kind
    namespace = f"public/killed-{kind}"
    make_namespace(places[2], namespace, 4)

    def run_again() -> None:
        if not killed.kind:
            killed.start(kind)

    topics = topics_of(namespace)
    with ExitStack() as restart, loaded(places, topics) as load:
        restart.callback(run_again)
        for bundle in bundles_with_topics(others[0], topics):
            move(places, others[1], namespace, bundle, killed)
        load.advance()
        killed.stop(signal.SIGKILL)
        print(f"kill -9 of the {kind} broker: all clients advance after {load.advance(1):.1f} s")
        ids = sorted(each.broker_id for each in others)
        until(lambda: all(sorted(each.get(BROKERS)) == ids for each in others))
        for topic in single_topics(topics):
            assert require_lookups(others, topic) in others
        load.advance()
        # Without a Java broker a pybroker leads; the Java broker leads again after its return.
        possible = ids if kind == JAVA else [places[0].broker_id]
        until(lambda: {each.leader() for each in others} <= set(possible))
        killed.start(kind)
        until_all_know_all(places)
        load.advance()
        until(lambda: all(each.leader() == places[0].broker_id for each in places))
