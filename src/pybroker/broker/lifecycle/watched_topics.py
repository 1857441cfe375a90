"""The topics that a pattern means, kept current for those who watch it, and what each watcher has not been told yet.

Watchers of one namespace with one pattern share a list: its names and its hash are the same for all of them. What a watcher was
told last plus `take` is always the list: a name that came and went in between is no change.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from dataclasses import dataclass

from pybroker.model.names import NamespaceName
from pybroker.model.topic_patterns import TopicsPattern, topics_hash

WATCHED_NAME_BYTES = 200
"""What a name takes, which is some sixty letters long."""
UNTOLD_NAME_BYTES = 100
"""What it takes besides for each watcher that has not been told of it."""


@dataclass(frozen=True, slots=True)
class TopicChanges:
    """What became of a list since a watcher was told last, both sorted, and the hash of the list now."""

    created: list[str]
    deleted: list[str]
    hash: str


class WatchedTopics:
    """One namespace's persistent topics of one pattern.

    Changes that come before the first list are kept and applied to it: the list may be older or newer than each of them.
    """

    def __init__(self, namespace: NamespaceName, pattern: TopicsPattern) -> None:
        self.namespace = namespace
        self.pattern = pattern
        self.watchers: list[TopicWatcher] = []
        self.is_loaded = False
        self.names: list[str] = []
        self._hash: str | None = None
        self._early: list[tuple[str, bool]] = []

    def __len__(self) -> int:
        return len(self.names)

    @property
    def size_bytes(self) -> int:
        """About how much memory this takes: the names, and what each watcher has not been told yet."""
        return WATCHED_NAME_BYTES * len(self.names) + UNTOLD_NAME_BYTES * sum(each.behind for each in self.watchers)

    @property
    def hash(self) -> str:
        """Reckoned again only after a change: it reads every name."""
        if self._hash is None:
            self._hash = topics_hash(self.names)
        return self._hash

    def load(self, names: list[str]) -> None:
        """`names` matched when they were listed, which was after the first watcher came."""
        assert not self.is_loaded
        self.names = sorted(names)
        self.is_loaded = True
        for name, is_created in self._early:
            self._apply(name, is_created)
        self._early.clear()

    def changed(self, name: str, is_created: bool) -> bool:
        """A persistent topic of the namespace came or went. True when it is one of this list, and watchers are to be told."""
        if not self.pattern.matches(name):
            return False
        if not self.is_loaded:
            self._early.append((name, is_created))
            return False
        return self._apply(name, is_created)

    def _apply(self, name: str, is_created: bool) -> bool:
        index = bisect_left(self.names, name)
        is_there = index < len(self.names) and self.names[index] == name
        if is_there == is_created:
            return False
        if is_created:
            insort(self.names, name)
        else:
            del self.names[index]
        self._hash = None
        for watcher in self.watchers:
            watcher.note(name, is_created)
        return True


class TopicWatcher(ABC):
    """One who is told of changes of `watched`; a subclass says how.

    While it cannot take any, changes add up here: to no more than the names before and after.
    """

    def __init__(self, watched: WatchedTopics) -> None:
        self.watched = watched
        self._pending: dict[str, bool] = {}

    def note(self, name: str, is_created: bool) -> None:
        """To be told later; the opposite change, if that is still to be told, has not happened."""
        if self._pending.pop(name, is_created) == is_created:
            self._pending[name] = is_created

    def forget(self) -> None:
        """Nothing is to be told: the watcher knows the present list."""
        self._pending.clear()

    @property
    def behind(self) -> int:
        """How many names are to be told."""
        return len(self._pending)

    @property
    def is_behind(self) -> bool:
        """Whether there is something to be told."""
        return bool(self._pending)

    def take(self) -> TopicChanges:
        """What is to be told, once."""
        created = sorted(name for name, is_created in self._pending.items() if is_created)
        deleted = sorted(name for name, is_created in self._pending.items() if not is_created)
        self._pending.clear()
        return TopicChanges(created, deleted, self.watched.hash)

    @property
    @abstractmethod
    def role(self) -> str | None:
        """On whose behalf it watches."""

    @property
    @abstractmethod
    def is_ready(self) -> bool:
        """Whether it knows a first list and takes changes now."""

    @abstractmethod
    def tell(self, changes: TopicChanges) -> None:
        """Pass `changes` on."""

    @abstractmethod
    def close_from_broker(self) -> None:
        """It may not watch any more, and is told nothing from now on."""
