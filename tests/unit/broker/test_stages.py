"""A subscription has only the steps of dispatching that its entries and its type need."""

from __future__ import annotations

from tests.support.recording_peer import RecordingPeer
from tests.unit.broker.one_topic import one_topic, run_of

from pybroker.broker.delivery.entry_kinds import EntryKinds
from pybroker.broker.delivery.subscription import Subscription
from pybroker.model.position import Position


def names(subscription: Subscription) -> list[str]:
    return [type(stage).__name__ for stage in subscription._stages]


def test_first_entry_of_each_kind_is_reported_once() -> None:
    changes: list[tuple[bool, bool]] = []
    kinds = EntryKinds(Position(1, 4), lambda: changes.append((kinds.has_markers, kinds.has_chunks)))
    for _ in range(2):
        kinds.markers_published()
        kinds.chunks_published()
    assert changes == [(True, False), (True, True)]


def test_entries_from_before_the_load_may_be_of_any_kind() -> None:
    kinds = EntryKinds(Position(1, 4), lambda: None)
    assert kinds.may_hold_markers(1, 4)
    assert kinds.may_hold_chunks(0, 9)
    assert not kinds.may_hold_markers(1, 5)
    assert not kinds.may_hold_chunks(2, 0)


async def test_stages_follow_subscription_type() -> None:
    async with one_topic() as it:
        subscription = await it.subscription()
        assert names(subscription) == []
        for kind, expected in (
            ("Shared", ["DelayedDelivery"]),
            ("Key_Shared", ["DelayedDelivery", "KeyHashes"]),
            ("Exclusive", []),
        ):
            consumer = it.consumer(subscription, RecordingPeer(), kind)
            assert names(subscription) == expected
            consumer.detach()


async def test_first_chunk_and_first_marker_add_their_stages_to_all_subscriptions() -> None:
    async with one_topic() as it:
        subscription = await it.subscription()
        it.consumer(subscription, RecordingPeer())
        producer = it.producer(RecordingPeer())
        run = run_of(1)
        run.chunk_count = 1
        it.topic.publish(producer, run)
        await producer.drained()
        assert names(subscription) == ["DelayedDelivery", "Chunks"]
        it.topic.entry_kinds.markers_published()
        assert names(subscription) == ["Markers", "DelayedDelivery", "Chunks"]
        assert names(await it.subscription("other")) == ["Markers"]
