"""Topics that match a watcher's pattern, and the changes that each watcher has not received yet.

Watchers with the same namespace and pattern share one list.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from dataclasses import dataclass

from pybroker.auth.proxied_role import Principal
from pybroker.model.names import NamespaceName
from pybroker.model.topic_patterns import TopicsPattern, topics_hash

WATCHED_NAME_BYTES = 200
"""Estimated memory per name, for names of about 60 characters."""
UNTOLD_NAME_BYTES = 100
"""Estimated memory per unsent name and watcher."""


@dataclass(frozen=True, slots=True)
class TopicChanges:
    """Changes since a watcher's last update, sorted, with the hash of the current list."""

    created: list[str]
    deleted: list[str]
    hash: str


class WatchedTopics:
    """Names that match one pattern in one namespace. Changes that arrive before the list is loaded are applied
    afterwards.
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
        return WATCHED_NAME_BYTES * len(self.names) + UNTOLD_NAME_BYTES * sum(each.behind for each in self.watchers)

    @property
    def hash(self) -> str:
        if self._hash is None:
            self._hash = topics_hash(self.names)
        return self._hash

    def load(self, names: list[str]) -> None:
        """Set the names. They must have been listed after the first watcher was added, so that no change is missed."""
        assert not self.is_loaded
        self.names = sorted(names)
        self.is_loaded = True
        for name, is_created in self._early:
            self._apply(name, is_created)
        self._early.clear()

    def changed(self, name: str, is_created: bool) -> bool:
        """Apply a creation or deletion. Return whether watchers must be notified."""
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
    """A client's watch of a topic list, with its unsent changes (at most one per name)."""

    def __init__(self, watched: WatchedTopics) -> None:
        self.watched = watched
        self._pending: dict[str, bool] = {}

    def note(self, name: str, is_created: bool) -> None:
        if self._pending.pop(name, is_created) == is_created:
            self._pending[name] = is_created

    def forget(self) -> None:
        """Drop all unsent changes, because the client receives the full list."""
        self._pending.clear()

    @property
    def behind(self) -> int:
        return len(self._pending)

    @property
    def is_behind(self) -> bool:
        return bool(self._pending)

    def take(self) -> TopicChanges:
        created = sorted(name for name, is_created in self._pending.items() if is_created)
        deleted = sorted(name for name, is_created in self._pending.items() if not is_created)
        self._pending.clear()
        return TopicChanges(created, deleted, self.watched.hash)

    @property
    @abstractmethod
    def principal(self) -> Principal: ...

    @property
    @abstractmethod
    def is_ready(self) -> bool:
        """Whether the client has received the list and its connection has output capacity."""

    @abstractmethod
    def tell(self, changes: TopicChanges) -> None: ...

    @abstractmethod
    def close_from_broker(self) -> None:
        """End the watch, because the client's permission was revoked."""
