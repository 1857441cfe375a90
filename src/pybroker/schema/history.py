"""The schema versions of a topic since its last deletion, and a bounded cache of them.

Pure. Version numbers only increase, also across deletions. The cache evicts the least recently used history, and does
not store one that exceeds its whole budget.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from pybroker.schema.schema_data import SchemaData

VERSION_SIZE_BYTES = 8
_OVERHEAD_BYTES = 500  # per topic, and per version without its definition


def version_to_bytes(version: int) -> bytes:
    """Encode a schema version as 8 bytes, big-endian, as in messages and commands."""
    return version.to_bytes(VERSION_SIZE_BYTES)


def version_from_bytes(data: bytes) -> int:
    """Decode a schema version: the first 8 bytes of `data`, as a signed big-endian number. A negative number is no
    version of any schema.
    """
    return int.from_bytes(data[:VERSION_SIZE_BYTES], signed=True)


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """One version of a topic's schema. Equal schemas have the same `digest`."""

    version: int
    schema: SchemaData
    timestamp_ms: int
    digest: bytes

    @property
    def size_bytes(self) -> int:
        texts = sum(len(key) + len(value) for key, value in self.schema.properties.items())
        return _OVERHEAD_BYTES + len(self.schema.data) + texts


@dataclass(frozen=True, slots=True)
class History:
    """The schema versions of a topic since the last deletion, oldest first, and the next version number."""

    versions: tuple[StoredSchema, ...] = ()
    next_version: int = 0

    @property
    def latest(self) -> StoredSchema | None:
        return self.versions[-1] if self.versions else None

    @property
    def deleted_version(self) -> int | None:
        """Return the version number of the last change if it deleted the schemas. Return None if it added a schema, or
        if there is no change.
        """
        return self.next_version - 1 if self.next_version and not self.versions else None

    def version(self, version: int) -> StoredSchema | None:
        first = self.next_version - len(self.versions)
        return self.versions[version - first] if first <= version < self.next_version else None

    def with_digest(self, digest: bytes) -> StoredSchema | None:
        return next((each for each in reversed(self.versions) if each.digest == digest), None)

    def added(self, stored: StoredSchema) -> History:
        assert stored.version == self.next_version, f"version {stored.version} after {self.next_version - 1}"
        return History((*self.versions, stored), self.next_version + 1)

    def deleted(self) -> History:
        """Return the history after a deletion of all schemas. The deletion uses the next version number."""
        return History((), self.next_version + 1)

    @property
    def size_bytes(self) -> int:
        return _OVERHEAD_BYTES + sum(each.size_bytes for each in self.versions)


class HistoryCache:
    """A cache of schema histories by path, limited in bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._histories: OrderedDict[str, History] = OrderedDict()
        self.size_bytes = 0

    def get(self, path: str) -> History | None:
        history = self._histories.get(path)
        if history is not None:
            self._histories.move_to_end(path)
        return history

    def put(self, path: str, history: History) -> None:
        self.drop(path)
        if history.size_bytes > self._limit_bytes:
            return
        self._histories[path] = history
        self.size_bytes += history.size_bytes
        while self.size_bytes > self._limit_bytes:
            _, oldest = self._histories.popitem(last=False)
            self.size_bytes -= oldest.size_bytes

    def drop(self, path: str) -> None:
        history = self._histories.pop(path, None)
        if history is not None:
            self.size_bytes -= history.size_bytes

    def drop_below(self, parent: str) -> None:
        for path in [each for each in self._histories if each.startswith(f"{parent}/")]:
            self.drop(path)
