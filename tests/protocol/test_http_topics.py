"""Topics and partitioned topics by REST: made, grown, listed, deleted, and what is refused."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from tests.support.memory_broker import MemoryBroker, memory_broker
from tests.support.recording_peer import RecordingPeer
from tests.support.rest import Answer, call

from pybroker.broker.lifecycle import topic_directory
from pybroker.broker.lifecycle.topic_directory import TopicListener
from pybroker.errors import NotAllowedError, StoreError, TopicNotFound
from pybroker.metadata.metadata_store import ANY_VERSION
from pybroker.metadata.partitioned_topics import PartitionedTopicMetadata
from pybroker.model.names import TopicName
from pybroker.model.policies import AutoTopicCreationOverride, NamespacePolicies

NAMESPACE = "/persistent/public/default"
PLAIN = f"{NAMESPACE}/plain"
ORDERS = f"{NAMESPACE}/orders"
ORDERS_NAME = TopicName.parse("orders")
MISSING = f"{NAMESPACE}/missing"


async def assert_ok(broker: MemoryBroker, method: str, path: str, body: object = None) -> None:
    answer = await broker.rest(method, path, body)
    assert answer.status == 204, answer


async def assert_refused(broker: MemoryBroker, status: int, method: str, path: str, body: object = None) -> Answer:
    answer = await broker.rest(method, path, body)
    assert answer.status == status, answer
    return answer


async def names_of(broker: MemoryBroker, path: str = NAMESPACE) -> list[str]:
    """The local names that a list shows."""
    return [name.rpartition("/")[2] for name in (await broker.rest("GET", path)).json]


def set_automatic(broker: MemoryBroker, override: AutoTopicCreationOverride | None) -> object:
    def change(policies: NamespacePolicies) -> None:
        policies.autoTopicCreationOverride = override

    return broker.service.resources.update_namespace(ORDERS_NAME.namespace, change)


class Listener(TopicListener):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def topic_created(self, name: TopicName) -> None:
        self.events.append(f"+{name.local_name}")

    def topic_deleted(self, name: TopicName) -> None:
        self.events.append(f"-{name.local_name}")


# --- topics without partitions -------------------------------------------------------------------------------------------


async def test_a_topic_is_made_once_and_deleted_once(broker: MemoryBroker) -> None:
    await assert_ok(broker, "PUT", PLAIN)
    assert await names_of(broker) == ["plain"]
    await assert_refused(broker, 409, "PUT", PLAIN)
    await assert_refused(broker, 409, "PUT", f"{PLAIN}/partitions", 2)
    assert (await broker.rest("GET", f"{PLAIN}/partitions")).json == {"partitions": 0, "deleted": False}
    await assert_ok(broker, "DELETE", PLAIN)
    await assert_refused(broker, 404, "DELETE", PLAIN)
    assert await names_of(broker) == []


async def test_properties_are_kept_merged_and_removed_one_by_one(broker: MemoryBroker) -> None:
    await assert_ok(broker, "PUT", PLAIN, {"a": "1", "b": "2"})
    await assert_ok(broker, "PUT", f"{PLAIN}/properties", {"b": "3", "c": "4"})
    await assert_ok(broker, "DELETE", f"{PLAIN}/properties?key=a")
    await assert_ok(broker, "DELETE", f"{PLAIN}/properties?key=unknown")
    await broker.service.topics.unload(await broker.topic("plain"))
    assert (await broker.rest("GET", f"{PLAIN}/properties")).json == {"b": "3", "c": "4"}
    await assert_ok(broker, "PUT", ORDERS)
    assert (await broker.rest("GET", f"{ORDERS}/properties")).json == {}


@pytest.mark.parametrize(
    ("status", "method", "path", "body"),
    [
        (412, "PUT", f"{NAMESPACE}/a-partition-0", None),
        (412, "PUT", f"{NAMESPACE}/a-partition-0/partitions", 2),
        (400, "PUT", f"{NAMESPACE}/s__transaction_pending_ack", None),
        (400, "PUT", "/persistent/pulsar/system/__transaction_log_0", None),
        (404, "PUT", "/persistent/public/nowhere/t", None),
        (404, "PUT", "/persistent/public/nowhere/t/partitions", 2),
        (404, "GET", "/persistent/public/nowhere", None),
        (404, "GET", "/persistent/public/nowhere/t/properties", None),
        (404, "PUT", "/persistent/public/nowhere/t/properties", {"a": "1"}),
        (404, "GET", "/persistent/public/nowhere/t/partitions", None),
        (404, "POST", "/persistent/public/nowhere/t/partitions", 2),
        (404, "DELETE", "/persistent/public/nowhere/t/partitions", None),
        (404, "DELETE", "/persistent/public/nowhere/t", None),
        (404, "GET", "/persistent/public/nowhere/partitioned", None),
        (412, "PUT", f"{NAMESPACE}/a%2Fb", None),
        (412, "PUT", f"{NAMESPACE}/a%0Ab", None),
        (406, "PUT", f"{MISSING}/partitions", 0),
        (406, "PUT", f"{MISSING}/partitions", -1),
        (406, "PUT", f"{MISSING}/partitions", 10_001),
        (400, "PUT", f"{MISSING}/partitions", "three"),
        (400, "PUT", f"{MISSING}/partitions", {"partitions": 3}),
        (400, "PUT", f"{MISSING}/partitions", None),
        (400, "PUT", MISSING, ["a"]),
        (409, "POST", f"{MISSING}/partitions", 2),
        (404, "DELETE", MISSING, None),
        (404, "DELETE", f"{MISSING}/partitions", None),
        (404, "POST", f"{MISSING}/createMissedPartitions", None),
        (404, "GET", f"{MISSING}/partitions", None),
        (404, "GET", f"{MISSING}/properties", None),
        (404, "PUT", f"{MISSING}/properties", {"a": "1"}),
        (404, "DELETE", f"{MISSING}/properties?key=a", None),
        (406, "GET", "/non-persistent/public/default/t/properties", None),
        (404, "GET", "/other/public/default", None),
    ],
)
async def test_what_cannot_be_is_refused(
    broker: MemoryBroker, status: int, method: str, path: str, body: object
) -> None:
    await assert_refused(broker, status, method, path, body)
    assert await names_of(broker) == []
    assert await names_of(broker, f"{NAMESPACE}/partitioned") == []


async def test_a_topic_with_clients_is_deleted_only_by_force(broker: MemoryBroker) -> None:
    topic, peer = await broker.topic("plain"), RecordingPeer()
    await broker.consumer(topic, "s", peer)
    broker.producer(topic, peer)
    answer = await assert_refused(broker, 412, "DELETE", PLAIN)
    assert "2 clients connected Including 1 consumers, 1 producers" in answer.text
    assert not topic.is_fenced
    await assert_ok(broker, "DELETE", f"{PLAIN}?force=true")
    assert peer.closed_consumers
    assert peer.closed_producers
    assert await names_of(broker) == []


async def test_subscriptions_alone_do_not_keep_a_topic_from_being_deleted(broker: MemoryBroker) -> None:
    topic = await broker.topic("plain")
    await topic.subscription("s", True, True, {})
    await assert_ok(broker, "DELETE", PLAIN)


async def test_a_list_shows_one_bundle_and_system_topics_when_asked(broker: MemoryBroker) -> None:
    for name in ("a", "b", "c", "d", "e", "__change_events"):
        await broker.topic(name)
    boundaries = (await broker.rest("GET", "/namespaces/public/default/bundles")).json["boundaries"]
    bundles = [f"{lower}_{upper}" for lower, upper in pairwise(boundaries)]
    by_bundle = [await names_of(broker, f"{NAMESPACE}?bundle={bundle}") for bundle in bundles]
    assert sorted(name for names in by_bundle for name in names) == ["a", "b", "c", "d", "e"]
    assert await names_of(broker, f"{NAMESPACE}?bundle=junk") == []
    everything = ["__change_events", "a", "b", "c", "d", "e"]
    assert await names_of(broker, f"{NAMESPACE}?includeSystemTopic=true") == everything
    namespace = "/namespaces/public/default/topics"
    assert await names_of(broker, namespace) == everything[1:]
    assert await names_of(broker, f"{namespace}?mode=ALL&includeSystemTopic=true") == everything
    assert await names_of(broker, f"{namespace}?mode=NON_PERSISTENT") == []


async def test_a_long_list_gives_way_to_others(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_directory, "NAMES_PER_TURN", 2)
    for index in range(8):
        await broker.topic(f"t-{index}")
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    assert len(await broker.service.directory.list(ORDERS_NAME.namespace, "persistent")) == 8
    task.cancel()
    assert turns >= 4


# --- partitioned topics --------------------------------------------------------------------------------------------------


async def test_a_partitioned_topic_is_made_with_its_partitions(broker: MemoryBroker) -> None:
    await assert_ok(broker, "PUT", f"{ORDERS}/partitions", 3)
    assert (await broker.rest("GET", f"{ORDERS}/partitions")).json == {"partitions": 3, "deleted": False}
    assert await names_of(broker, f"{NAMESPACE}/partitioned") == ["orders"]
    assert await names_of(broker) == [f"orders-partition-{index}" for index in range(3)]
    for body in (3, 4):
        await assert_refused(broker, 409, "PUT", f"{ORDERS}/partitions", body)
    for path in (ORDERS, f"{ORDERS}-partition-1"):
        await assert_refused(broker, 409, "PUT", path)
    await assert_refused(broker, 412, "PUT", f"{ORDERS}-partition-3")
    answer = await assert_refused(broker, 409, "DELETE", ORDERS)
    assert "delete-partitioned-topic" in answer.text


async def test_a_partitioned_topic_has_properties_of_its_own(broker: MemoryBroker) -> None:
    url = f"http://127.0.0.1:{broker._server.port}/admin/v2{ORDERS}/partitions"
    media_type = {"Content-Type": "application/vnd.partitioned-topic-metadata+json"}
    body = {"partitions": 2, "properties": {"x": "1"}}
    answer = await asyncio.to_thread(lambda: call(url, "PUT", body=body, headers=media_type))
    assert answer.status == 204, answer
    await assert_ok(broker, "PUT", f"{ORDERS}/properties", {"y": "2"})
    shown = (await broker.rest("GET", f"{ORDERS}/partitions")).json
    assert shown == {"partitions": 2, "deleted": False, "properties": {"x": "1", "y": "2"}}
    assert (await broker.rest("GET", f"{ORDERS}-partition-0/properties")).json == {}
    await assert_ok(broker, "DELETE", f"{ORDERS}/properties?key=x")
    assert (await broker.rest("GET", f"{ORDERS}/properties")).json == {"y": "2"}


async def test_a_partition_that_was_deleted_is_made_again_by_hand_or_on_demand(broker: MemoryBroker) -> None:
    await assert_ok(broker, "PUT", f"{ORDERS}/partitions", 3)
    for index in (0, 1, 2):
        await assert_ok(broker, "DELETE", f"{ORDERS}-partition-{index}")
    assert (await broker.rest("GET", f"{ORDERS}/partitions")).json["partitions"] == 3
    await broker.topic("orders-partition-1")
    assert await names_of(broker) == ["orders-partition-1"]
    await assert_ok(broker, "PUT", f"{ORDERS}-partition-2")
    await assert_ok(broker, "POST", f"{ORDERS}/createMissedPartitions")
    assert await names_of(broker) == [f"orders-partition-{index}" for index in range(3)]


async def test_new_partitions_have_the_subscriptions_of_the_first_one(broker: MemoryBroker) -> None:
    await assert_ok(broker, "PUT", f"{ORDERS}/partitions", 1)
    first = await broker.topic("orders-partition-0")
    await first.subscription("s", True, True, {"k": "v"})
    await assert_refused(broker, 422, "POST", f"{ORDERS}/partitions", 0)
    await assert_ok(broker, "POST", f"{ORDERS}/partitions", 1)
    await assert_ok(broker, "POST", f"{ORDERS}/partitions", 3)
    assert (await broker.rest("GET", f"{ORDERS}/partitions")).json["partitions"] == 3
    for index in (1, 2):
        added = await broker.topic(f"orders-partition-{index}")
        await broker.publish(added, 2)
        assert added.subscriptions["s"].cursor.backlog_entries == 2
        assert added.subscriptions["s"].cursor.properties == {"k": "v"}
    await assert_refused(broker, 422, "POST", f"{ORDERS}/partitions", 2)


async def test_partitions_that_an_interrupted_update_left_are_taken_over(broker: MemoryBroker) -> None:
    await assert_ok(broker, "PUT", f"{ORDERS}/partitions", 1)
    await (await broker.topic("orders-partition-0")).subscription("s", True, True, {})
    await broker.service.topics.make(ORDERS_NAME.partition(1), {})
    with pytest.raises(TopicNotFound):
        await broker.topic("orders-partition-1")
    await assert_ok(broker, "POST", f"{ORDERS}/partitions", 2)
    assert "s" in (await broker.topic("orders-partition-1")).subscriptions


async def test_partitions_that_an_interrupted_update_left_go_with_their_topic(broker: MemoryBroker) -> None:
    await assert_ok(broker, "PUT", f"{ORDERS}/partitions", 2)
    for index in (2, 5, 60):
        await broker.service.topics.make(ORDERS_NAME.partition(index), {})
    await assert_ok(broker, "DELETE", f"{ORDERS}/partitions")
    assert (await broker.rest("GET", NAMESPACE)).json == []


async def test_a_partitioned_topic_goes_with_its_partitions_and_policies(broker: MemoryBroker) -> None:
    await assert_ok(broker, "PUT", f"{ORDERS}/partitions", 2)
    await assert_ok(broker, "POST", f"{ORDERS}/messageTTL?messageTTL=60")
    assert (await broker.topic("orders-partition-1")).policies.message_ttl_s == 60
    peer = RecordingPeer()
    await broker.consumer(await broker.topic("orders-partition-1"), "s", peer)
    await assert_refused(broker, 412, "DELETE", f"{ORDERS}/partitions")
    assert len(await names_of(broker)) == 2
    await broker.topic("orders-partition-0")
    await assert_ok(broker, "DELETE", f"{ORDERS}/partitions?force=true")
    assert peer.closed_consumers
    assert await names_of(broker) == []
    assert await names_of(broker, f"{NAMESPACE}/partitioned") == []
    await assert_ok(broker, "PUT", f"{ORDERS}/partitions", 1)
    assert (await broker.topic("orders-partition-0")).policies.message_ttl_s == 0


async def test_no_partition_is_made_again_while_its_topic_is_being_deleted(broker: MemoryBroker) -> None:
    await assert_ok(broker, "PUT", f"{ORDERS}/partitions", 3)
    deleting = asyncio.ensure_future(broker.service.partitioned_operations.delete(ORDERS_NAME, force=True))
    await broker.until(lambda: not broker.service.creation.is_settled(ORDERS_NAME.partition(0)))
    with pytest.raises(NotAllowedError):  # It waits, and then there is no partitioned topic any more.
        await broker.topic("orders-partition-0")
    assert deleting.done()
    await deleting
    assert await names_of(broker) == []


async def test_a_deletion_that_a_stop_cut_off_is_finished_at_the_start(broker: MemoryBroker) -> None:
    def mark(metadata: PartitionedTopicMetadata) -> None:
        metadata.deleted = True

    await assert_ok(broker, "PUT", f"{ORDERS}/partitions", 2)
    await assert_ok(broker, "DELETE", f"{ORDERS}-partition-0")
    await broker.service.partitioned.update(ORDERS_NAME, mark)
    await broker.service.partitioned_operations.finish_deletions()
    assert await names_of(broker) == []
    assert await names_of(broker, f"{NAMESPACE}/partitioned") == []


async def test_a_deletion_that_fails_leaves_a_topic_that_can_be_used(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(managed: object) -> None:
        raise StoreError("no")

    await assert_ok(broker, "PUT", f"{ORDERS}/partitions", 2)
    with monkeypatch.context() as patched:
        patched.setattr(broker.service.ledgers, "delete", fail)
        await assert_refused(broker, 500, "DELETE", f"{ORDERS}/partitions")
    assert (await broker.rest("GET", f"{ORDERS}/partitions")).json == {"partitions": 2, "deleted": False}
    await broker.topic("orders-partition-1")


async def test_partitions_of_the_domain_non_persistent_are_metadata(broker: MemoryBroker) -> None:
    path = "/non-persistent/public/default/live"
    await assert_ok(broker, "PUT", f"{path}/partitions", 2)
    await assert_ok(broker, "POST", f"{path}/partitions", 3)
    assert (await broker.rest("GET", f"{path}/partitions")).json == {"partitions": 3, "deleted": False}
    assert await names_of(broker, "/non-persistent/public/default/partitioned") == ["live"]
    assert await names_of(broker, "/non-persistent/public/default") == []
    await assert_ok(broker, "DELETE", f"{path}/partitions")
    await assert_refused(broker, 404, "GET", f"{path}/partitions")


# --- automatic creation --------------------------------------------------------------------------------------------------


async def test_what_a_client_names_is_made_as_the_broker_says() -> None:
    async with memory_broker(allow_auto_topic_creation_type="partitioned", default_num_partitions=2) as broker:
        service = broker.service
        with pytest.raises(TopicNotFound):
            await service.partitioned_metadata(ORDERS_NAME, create=False)
        assert await service.partitioned_metadata(ORDERS_NAME, create=True) == 2
        # Its partitions come with the clients that want them.
        assert await names_of(broker) == []
        await broker.topic("orders-partition-1")
        assert await names_of(broker) == ["orders-partition-1"]
        with pytest.raises(NotAllowedError, match="Found partitioned metadata"):
            await broker.topic("orders")
        with pytest.raises(TopicNotFound):
            await broker.topic("orders-partition-2")
        # Who does not ask first makes a topic without partitions, and it stays one.
        await broker.topic("plain")
        assert await service.partitioned_metadata(TopicName.parse("plain"), create=True) == 0


async def test_a_name_that_ends_like_a_partition_becomes_nothing_by_itself() -> None:
    async with memory_broker(allow_auto_topic_creation_type="partitioned") as broker:
        name = TopicName.parse("a-partition-2")
        assert await broker.service.partitioned_metadata(name, create=True) == 0
        with pytest.raises(NotAllowedError, match="Partition metadata not found"):
            await broker.service.topics.get(name, may_create=True)
        assert await names_of(broker) == []
        assert await names_of(broker, f"{NAMESPACE}/partitioned") == []


async def test_what_the_namespace_says_about_automatic_creation_wins(broker: MemoryBroker) -> None:
    await set_automatic(broker, AutoTopicCreationOverride(False))  # type: ignore[misc]
    for work in (broker.topic("orders"), broker.service.partitioned_metadata(ORDERS_NAME, create=True)):
        with pytest.raises(TopicNotFound):
            await work
    await set_automatic(broker, AutoTopicCreationOverride(True, "partitioned", 4))  # type: ignore[misc]
    assert await broker.service.partitioned_metadata(ORDERS_NAME, create=True) == 4


async def test_where_nothing_is_made_by_itself_a_missing_partition_is(broker: MemoryBroker) -> None:
    await assert_ok(broker, "PUT", f"{ORDERS}/partitions", 2)
    await assert_ok(broker, "DELETE", f"{ORDERS}-partition-1")
    await set_automatic(broker, AutoTopicCreationOverride(False))  # type: ignore[misc]
    await broker.topic("orders-partition-1")


@pytest.mark.parametrize("is_slow", [False, True])
async def test_two_clients_that_name_a_topic_at_once_make_one(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, is_slow: bool
) -> None:
    store = broker.service.metadata_store
    put = store.put

    async def slow_put(path: str, value: bytes, expected_version: int = ANY_VERSION) -> int:
        for _ in range(10):
            await asyncio.sleep(0)
        return await put(path, value, expected_version)

    await set_automatic(broker, AutoTopicCreationOverride(True, "partitioned", 2))  # type: ignore[misc]
    if is_slow:
        monkeypatch.setattr(store, "put", slow_put)
    counts = await asyncio.gather(
        *(broker.service.partitioned_metadata(ORDERS_NAME, create=True) for _ in range(3)), return_exceptions=True
    )
    assert counts == [2, 2, 2]


async def test_a_name_is_either_partitioned_or_not_also_when_both_come_at_once(broker: MemoryBroker) -> None:
    for index in range(20):
        name = f"both-{index}"
        plain, partitioned = await asyncio.gather(
            broker.topic(name), broker.rest("PUT", f"{NAMESPACE}/{name}/partitions", 2), return_exceptions=True
        )
        assert not isinstance(partitioned, BaseException)
        was_made_plain = not isinstance(plain, BaseException)
        assert partitioned.status == (409 if was_made_plain else 204)
    shown = await names_of(broker, f"{NAMESPACE}/partitioned")
    assert not set(shown) & set(await names_of(broker))


async def test_who_wants_no_topic_made_does_not_keep_others_from_making_it(broker: MemoryBroker) -> None:
    name = TopicName.parse("plain")
    missing, made = await asyncio.gather(
        broker.service.topics.get(name, may_create=False),
        broker.service.topics.get(name, may_create=True),
        return_exceptions=True,
    )
    assert isinstance(missing, TopicNotFound)
    assert not isinstance(made, BaseException)


async def test_strict_names_have_no_keyword_of_partitions() -> None:
    async with memory_broker(strict_topic_name_enabled=True) as broker:
        await assert_refused(broker, 409, "PUT", f"{NAMESPACE}/a-partition-b")
        with pytest.raises(NotAllowedError):
            await broker.topic("a-partition-03")
        await assert_ok(broker, "PUT", f"{ORDERS}/partitions", 1)
        await broker.topic("orders-partition-0")


async def test_listeners_hear_of_every_topic_once_it_is_there_or_gone(broker: MemoryBroker) -> None:
    listener = Listener()
    broker.service.directory.listen(listener)
    await assert_ok(broker, "PUT", PLAIN)
    await broker.topic("auto")
    await broker.service.topics.unload(await broker.topic("auto"))
    await broker.topic("auto")
    await assert_ok(broker, "PUT", f"{ORDERS}/partitions", 1)
    await assert_ok(broker, "POST", f"{ORDERS}/partitions", 2)
    await assert_ok(broker, "DELETE", f"{ORDERS}/partitions")
    await assert_ok(broker, "DELETE", PLAIN)
    parts = ["orders-partition-0", "orders-partition-1"]
    assert [event for event in listener.events if "__change_events" not in event] == [
        "+plain",
        "+auto",
        *(f"+{each}" for each in parts),
        *(f"-{each}" for each in parts),
        "-plain",
    ]


# --- limits and whole namespaces -----------------------------------------------------------------------------------------


async def test_a_namespace_takes_no_more_topics_than_it_may_have_whichever_way_they_come() -> None:
    async with memory_broker(max_topics_per_namespace=3) as broker:
        await assert_ok(broker, "PUT", PLAIN)
        await assert_refused(broker, 412, "PUT", f"{ORDERS}/partitions", 3)
        assert await names_of(broker, f"{NAMESPACE}/partitioned") == []
        await assert_ok(broker, "PUT", f"{ORDERS}/partitions", 2)
        await assert_refused(broker, 409, "PUT", f"{NAMESPACE}/more")
        await assert_refused(broker, 412, "POST", f"{ORDERS}/partitions", 3)
        with pytest.raises(NotAllowedError):
            await broker.topic("more")
        await broker.topic("__change_events")
        await assert_ok(broker, "DELETE", PLAIN)
        results = await asyncio.gather(*(broker.topic(f"t{i}") for i in range(5)), return_exceptions=True)
        assert sum(isinstance(each, NotAllowedError) for each in results) == 4
        await assert_ok(broker, "PUT", "/namespaces/public/other", {"max_topics_per_namespace": 0})
        for index in range(5):
            await assert_ok(broker, "PUT", f"/persistent/public/other/t{index}")


async def test_the_number_of_partitions_tenants_and_namespaces_is_limited() -> None:
    async with memory_broker(
        max_num_partitions_per_partitioned_topic=2, max_tenants=3, max_namespaces_per_tenant=2
    ) as broker:
        await assert_refused(broker, 406, "PUT", f"{ORDERS}/partitions", 3)
        await assert_ok(broker, "PUT", f"{ORDERS}/partitions", 2)
        await assert_refused(broker, 406, "POST", f"{ORDERS}/partitions", 3)
        tenant = {"adminRoles": [], "allowedClusters": ["standalone"]}
        await assert_ok(broker, "PUT", "/tenants/a", tenant)
        await assert_refused(broker, 412, "PUT", "/tenants/b", tenant)
        await assert_ok(broker, "PUT", "/namespaces/public/one")
        await assert_refused(broker, 412, "PUT", "/namespaces/public/two")


async def test_a_namespace_with_topics_goes_only_by_force_and_then_as_a_whole() -> None:
    async with memory_broker(force_delete_namespace_allowed=True, force_delete_tenant_allowed=True) as broker:
        await assert_ok(broker, "PUT", "/namespaces/public/ns")
        await assert_ok(broker, "PUT", "/persistent/public/ns/p/partitions", 2)
        await broker.topic("public/ns/t")
        await broker.topic("public/ns/__change_events")
        await assert_refused(broker, 409, "DELETE", "/namespaces/public/ns")
        await assert_ok(broker, "DELETE", "/namespaces/public/ns?force=true")
        await assert_refused(broker, 404, "GET", "/namespaces/public/ns/topics")
        await assert_ok(broker, "PUT", "/namespaces/public/ns")
        assert (await broker.rest("GET", "/namespaces/public/ns/topics?includeSystemTopic=true")).json == []
        assert (await broker.rest("GET", "/persistent/public/ns/partitioned")).json == []
        await broker.topic("public/ns/__change_events")
        await assert_ok(broker, "DELETE", "/namespaces/public/ns")
        await assert_ok(broker, "PUT", "/tenants/a", {"adminRoles": [], "allowedClusters": ["standalone"]})
        await assert_ok(broker, "PUT", "/namespaces/a/ns")
        await assert_ok(broker, "PUT", "/persistent/a/ns/p/partitions", 1)
        await assert_ok(broker, "DELETE", "/tenants/a?force=true")
        await assert_refused(broker, 404, "GET", "/tenants/a")


async def test_a_topic_whose_deletion_a_crash_has_cut_off_can_be_deleted_again(broker: MemoryBroker) -> None:
    topic = await broker.topic("plain")
    topic.ledger.document.is_deleted = True
    await broker.service.topics.unload(topic)
    await assert_refused(broker, 404, "GET", f"{PLAIN}/partitions")
    assert await names_of(broker) == ["plain"]
    await assert_ok(broker, "DELETE", PLAIN)
    assert await names_of(broker) == []
    await assert_refused(broker, 404, "DELETE", PLAIN)
