import pytest

from pybroker.broker.lifecycle.watched_topics import TopicChanges, TopicWatcher, WatchedTopics
from pybroker.model.names import NamespaceName
from pybroker.model.topic_patterns import TopicsPattern, topics_hash

A, B, C = (f"persistent://t/ns/foo-{letter}" for letter in "abc")
OTHER = "persistent://t/ns/bar"


class Listener(TopicWatcher):
    """Takes what it is told, always."""

    @property
    def is_ready(self) -> bool:
        return True

    @property
    def principal(self) -> str:
        return ""

    def close_from_broker(self) -> None:
        raise AssertionError("nobody's rights change here")

    def tell(self, changes: TopicChanges) -> None:
        raise AssertionError("who watches is asked, not told, here")


@pytest.fixture
def watched() -> WatchedTopics:
    found = WatchedTopics(NamespaceName("t", "ns"), TopicsPattern.parse("persistent://t/ns/foo.*"))
    found.load([B, A])
    return found


@pytest.fixture
def watcher(watched: WatchedTopics) -> Listener:
    found = Listener(watched)
    watched.watchers.append(found)
    return found


def test_a_list_is_sorted_and_has_its_hash(watched: WatchedTopics) -> None:
    assert watched.names == [A, B]
    assert watched.hash == topics_hash([A, B])


def test_changes_are_told_together_once(watched: WatchedTopics, watcher: Listener) -> None:
    assert watched.changed(C, True)
    assert watched.changed(A, False)
    assert watcher.is_behind
    assert watcher.take() == TopicChanges([C], [A], topics_hash([B, C]))
    assert not watcher.is_behind


def test_what_the_pattern_does_not_mean_is_no_change(watched: WatchedTopics, watcher: Listener) -> None:
    assert not watched.changed(OTHER, True)
    assert not watcher.is_behind


def test_what_is_known_already_is_no_change(watched: WatchedTopics, watcher: Listener) -> None:
    assert not watched.changed(A, True)
    assert not watched.changed(C, False)
    assert not watcher.is_behind


def test_a_topic_that_came_and_went_in_between_is_not_told(watched: WatchedTopics, watcher: Listener) -> None:
    watched.changed(C, True)
    watched.changed(C, False)
    watched.changed(A, False)
    watched.changed(A, True)
    assert not watcher.is_behind
    assert watched.hash == topics_hash([A, B])


def test_who_takes_nothing_for_long_gets_the_sum(watched: WatchedTopics, watcher: Listener) -> None:
    prompt = Listener(watched)
    watched.watchers.append(prompt)
    for _ in range(3):
        watched.changed(C, True)
        prompt.take()
        watched.changed(C, False)
        prompt.take()
    watched.changed(C, True)
    assert prompt.take() == watcher.take() == TopicChanges([C], [], topics_hash([A, B, C]))


def test_who_got_the_whole_list_is_not_told_what_led_to_it(watched: WatchedTopics, watcher: Listener) -> None:
    watched.changed(C, True)
    watcher.forget()
    assert not watcher.is_behind


def test_changes_before_the_first_list_are_applied_to_it() -> None:
    watched = WatchedTopics(NamespaceName("t", "ns"), TopicsPattern.parse("t/ns/foo.*"))
    assert not watched.changed(C, True)
    assert not watched.changed(A, False)
    watched.load([A, B])
    assert watched.names == [B, C]


def test_the_first_list_may_be_newer_than_the_changes() -> None:
    watched = WatchedTopics(NamespaceName("t", "ns"), TopicsPattern.parse("t/ns/foo.*"))
    watched.changed(C, True)
    watched.changed(A, False)
    watched.load([B, C])
    assert watched.names == [B, C]
