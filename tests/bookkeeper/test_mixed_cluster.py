"""One Java broker and two pybrokers share the topics of a real ZooKeeper and real bookies."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest
from tests.bookkeeper.mixed_cluster import (
    BROKERS,
    JAVA,
    OWN,
    Place,
    bundles_of,
    mixed_places,
    owner_of,
    transfer,
    until,
    until_all_know_all,
)
from tests.bookkeeper.mixed_load import BATCHED, KEYED, SINGLE, LoadedTopic, MixedLoad

pytestmark = pytest.mark.long
NAMESPACE = "public/moving"
PARTITIONS = 4
TOPICS = (
    LoadedTopic(
        f"persistent://{NAMESPACE}/plain", (SINGLE, BATCHED, KEYED), ("Exclusive", "Failover", "Shared", "Key_Shared")
    ),
    LoadedTopic(
        f"persistent://{NAMESPACE}/parted", (KEYED,), ("Failover", "Shared", "Key_Shared"), partitions=PARTITIONS
    ),
    LoadedTopic(f"persistent://{NAMESPACE}/typed", (BATCHED, KEYED), ("Exclusive", "Key_Shared"), has_schema=True),
)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Place]]:
    with mixed_places(tmp_path_factory.mktemp("mixed")) as places:
        yield places


@contextmanager
def loaded(places: Sequence[Place]) -> Iterator[MixedLoad]:
    """Run the clients for the block, then check that they have lost nothing."""
    for topic in TOPICS:
        if topic.partitions:
            path = f"/admin/v2/persistent/{NAMESPACE}/{topic.local_name}/partitions"
            assert places[0].call("PUT", path, topic.partitions)[0] in (204, 409)
    load = MixedLoad([each.url for each in places], TOPICS)
    try:
        load.advance()
        yield load
        print(f"{load.finish()} receipts")
    finally:
        load.stop()


def make_namespace(place: Place, name: str, bundles: int) -> None:
    body = {"bundles": {"numBundles": bundles}}
    assert place.call("PUT", f"/admin/v2/namespaces/{name}", body)[0] in (204, 409)


def require_lookups(places: Sequence[Place], topic: str) -> Place:
    """Look the topic up at each broker, over both protocols. Return its owner."""
    found = {each.name: (each.owner_over_protocol(topic), each.owner_over_http(topic)) for each in places}
    owners = {url for pair in found.values() for url in pair}
    assert len(owners) == 1, f"{topic}: {found}"
    return next(each for each in places if each.url in owners)


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
    make_namespace(java, NAMESPACE, 4)
    moves = [(java, first), (first, second), (second, java), (java, second), (second, first), (first, java)]
    with loaded(places) as load:
        bundles = bundles_of(java, NAMESPACE)
        topics = [TOPICS[0].name, TOPICS[2].name, *(f"{TOPICS[1].name}-partition-{each}" for each in range(PARTITIONS))]
        bundle_of = {topic: java.get(f"/lookup/v2/topic/{topic.replace('://', '/')}/bundle") for topic in topics}
        for bundle in bundles:
            transfer(java, NAMESPACE, bundle, java)
        for asked in places:
            for source, destination in moves:
                for bundle in bundles:
                    transfer(asked, NAMESPACE, bundle, destination)
                for topic in bundle_of:
                    assert require_lookups(places, topic) is destination, f"{source} to {destination}, asked of {asked}"
                took_s = load.advance()
                print(f"{source} to {destination}, asked of {asked}: all clients advance after {took_s:.1f} s")
        # The bundles of one namespace at different brokers, and an unload of all of them.
        for number, bundle in enumerate(bundles):
            transfer(places[number % 3], NAMESPACE, bundle, places[number % 3])
        load.advance()
        for asked in places:
            assert asked.call("PUT", f"/admin/v2/namespaces/{NAMESPACE}/unload") == (204, None)
            load.advance()


@pytest.mark.parametrize("victim", [0, 1], ids=[JAVA, OWN])
def test_kill_of_an_owner_loses_nothing(places: list[Place], victim: int) -> None:
    make_namespace(places[2], NAMESPACE, 4)
    killed = places[victim]
    others = [each for each in places if each is not killed]
    kind = killed.kind
    with loaded(places) as load, ExitStack() as restart:
        restart.callback(lambda: killed.kind or killed.start(kind))
        for bundle in bundles_of(others[0], NAMESPACE):
            transfer(others[1], NAMESPACE, bundle, killed)
        assert owner_of(others, TOPICS[0].name) is killed or owner_of(places, TOPICS[0].name) is killed
        load.advance()
        killed.stop(signal.SIGKILL)
        print(f"kill -9 of the {kind} broker: all clients advance after {load.advance(1):.1f} s")
        until(lambda: all(sorted(each.get(BROKERS)) == sorted(e.broker_id for e in others) for each in others))
        for topic in TOPICS:
            if not topic.partitions:
                assert require_lookups(others, topic.name) in others
        load.advance()
        killed.start(kind)
        until_all_know_all(places)
        load.advance()
    for place in places:
        until(lambda place=place: place.leader() == places[0].broker_id)  # type: ignore[misc]
