"""Watchers of topic lists inside a broker: when they are told, and what it costs."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.memory_broker import MemoryBroker

from pybroker.broker.lifecycle import topic_watchers
from pybroker.broker.lifecycle.topic_directory import TopicListener
from pybroker.broker.lifecycle.topic_watchers import TopicWatchers
from pybroker.broker.lifecycle.watched_topics import TopicChanges, TopicWatcher, WatchedTopics
from pybroker.errors import NotAllowedError
from pybroker.model.names import NamespaceName, TopicName
from pybroker.model.topic_patterns import TopicsPattern, topics_hash

NAMESPACE = NamespaceName("public", "default")


class Recorder(TopicWatcher):
    """Remembers what it is told; takes nothing while `takes` is false."""

    def __init__(self, watched: WatchedTopics) -> None:
        super().__init__(watched)
        self.takes = True
        self.told: list[TopicChanges] = []

    @property
    def principal(self) -> str | None:
        return None

    @property
    def is_ready(self) -> bool:
        return self.takes

    def close_from_broker(self) -> None:
        raise AssertionError("without authorization nobody loses a right")

    def tell(self, changes: TopicChanges) -> None:
        self.told.append(changes)


@pytest.fixture
def watchers(broker: MemoryBroker) -> TopicWatchers:
    return broker.service.topic_watchers


async def recorder(watchers: TopicWatchers, pattern: str = ".*") -> Recorder:
    found = Recorder(watchers.watched(NAMESPACE, TopicsPattern.parse(pattern)))
    watchers.open(found)
    await watchers.load(found.watched)
    found.forget()
    return found


def full(*names: str) -> list[str]:
    return [f"persistent://public/default/{name}" for name in names]


async def test_those_who_watch_the_same_share_a_list(broker: MemoryBroker, watchers: TopicWatchers) -> None:
    first, second = await recorder(watchers), await recorder(watchers)
    assert first.watched is second.watched
    assert (await recorder(watchers, "public/default/a.*")).watched is not first.watched
    await broker.topic(*full("a"))
    await broker.until(lambda: bool(first.told and second.told))
    assert first.told == second.told == [TopicChanges(full("a"), [], topics_hash(full("a")))]


async def test_who_takes_nothing_is_told_the_sum_later(broker: MemoryBroker, watchers: TopicWatchers) -> None:
    slow, prompt = await recorder(watchers), await recorder(watchers)
    slow.takes = False
    for name in ("a", "b"):
        await broker.topic(*full(name))
        await broker.until(lambda name=name: full(name) in [changes.created for changes in prompt.told])  # type: ignore[misc]
    assert not slow.told
    slow.takes = True
    await broker.until(lambda: bool(slow.told))
    assert slow.told == [TopicChanges(full("a", "b"), [], topics_hash(full("a", "b")))]


async def test_a_topic_made_while_the_first_list_is_read_is_not_missed(
    broker: MemoryBroker, watchers: TopicWatchers, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, go_on = asyncio.Event(), asyncio.Event()
    directory = broker.service.directory
    real = directory.list

    async def slow(namespace: NamespaceName, domain: str | None) -> list[str]:
        names = await real(namespace, domain)
        reading.set()
        await go_on.wait()
        return names

    monkeypatch.setattr(directory, "list", slow)
    async with asyncio.TaskGroup() as group:
        opening = [group.create_task(recorder(watchers)) for _ in range(2)]
        await reading.wait()
        await broker.topic(*full("late"))
        go_on.set()
    assert [opened.result().watched.names for opened in opening] == [full("late")] * 2


async def test_partitions_that_a_topic_gets_are_told_once_clients_can_use_them(
    broker: MemoryBroker, watchers: TopicWatchers
) -> None:
    usable: list[bool] = []

    class Client(TopicListener):
        """One that comes the moment it hears of a topic."""

        def topic_created(self, name: TopicName) -> None:
            if name.partitioned_name.local_name != "part":
                return  # a system topic
            metadata = broker.service.partitioned.get(name.partitioned_name)
            usable.append(metadata is not None and name.partition_index < metadata.partitions)

        def topic_deleted(self, name: TopicName) -> None:
            """Of no interest."""

    broker.service.directory.listen(Client())
    watcher = await recorder(watchers, "public/default/part")
    path = "/persistent/public/default/part/partitions"
    assert (await broker.rest("PUT", path, 1)).status == 204
    assert (await broker.rest("POST", path, 4)).status == 204
    await broker.until(lambda: sum(len(changes.created) for changes in watcher.told) == 4)
    assert usable == [True] * 4


async def test_a_list_that_nobody_watches_is_forgotten(broker: MemoryBroker, watchers: TopicWatchers) -> None:
    first, second = await recorder(watchers), await recorder(watchers)
    watchers.close(first)
    watchers.close(first)
    await broker.topic(*full("a"))
    await broker.until(lambda: bool(second.told))
    assert not first.told
    watchers.close(second)
    await broker.topic(*full("b"))
    assert (await recorder(watchers)).watched.names == full("a", "b")
    assert len(second.told) == 1


async def test_more_names_than_may_be_watched_are_refused(
    broker: MemoryBroker, watchers: TopicWatchers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_watchers, "MAX_WATCHED_NAMES", 3)
    for name in ("a", "b"):
        await broker.topic(*full(name))
    await recorder(watchers)
    await recorder(watchers, "public/default/a")
    refused = Recorder(watchers.watched(NAMESPACE, TopicsPattern.parse("public/default/.")))
    watchers.open(refused)
    with pytest.raises(NotAllowedError):
        await watchers.load(refused.watched)
    watchers.close(refused)
    assert (await recorder(watchers)).watched.names == full("a", "b")


async def test_thousands_of_topics_are_a_few_updates(broker: MemoryBroker, watchers: TopicWatchers) -> None:
    watcher = await recorder(watchers)
    names = full(*(f"t{index:05}" for index in range(5000)))
    for index, name in enumerate(names):
        watchers.topic_created(TopicName.parse(name))
        if index % 100 == 0:
            await asyncio.sleep(0)
    await broker.until(lambda: sum(len(changes.created) for changes in watcher.told) == len(names))
    assert watcher.told[-1].hash == topics_hash(names)
    assert len(watcher.told) < 50
