"""What is known of a topic's schemas: its versions since the last deletion, and a bounded cache of that.

Pure. What must hold: versions of a topic only grow, also over deletions; the newest deletion hides all versions before
it for good. The cache never holds more than its budget: what was not asked for the longest goes first, and a history
that is larger than the whole budget is not kept at all.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from pybroker.schema.schema_data import SchemaData

VERSION_SIZE_BYTES = 8
_OVERHEAD_BYTES = 500  # of a topic without schemas, or of a version besides its definition


def version_to_bytes(version: int) -> bytes:
    """As messages and commands carry a version: 8 bytes, big-endian."""
    return version.to_bytes(VERSION_SIZE_BYTES)


def version_from_bytes(data: bytes) -> int:
    """The version in the first 8 bytes; what is no version of any schema is negative."""
    return int.from_bytes(data[:VERSION_SIZE_BYTES], signed=True)


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """One version; `digest` is equal for schemas that are the same one."""

    version: int
    schema: SchemaData
    timestamp_ms: int
    digest: bytes

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory."""
        texts = sum(len(key) + len(value) for key, value in self.schema.properties.items())
        return _OVERHEAD_BYTES + len(self.schema.data) + texts


@dataclass(frozen=True, slots=True)
class History:
    """The versions since the last deletion, oldest first, and the version that comes next."""

    versions: tuple[StoredSchema, ...] = ()
    next_version: int = 0

    @property
    def latest(self) -> StoredSchema | None:
        """The newest version; None when there is none, or when they were deleted."""
        return self.versions[-1] if self.versions else None

    @property
    def deleted_version(self) -> int | None:
        """The version that says that all before it were deleted, as long as none came after it."""
        return self.next_version - 1 if self.next_version and not self.versions else None

    def version(self, version: int) -> StoredSchema | None:
        """That version, None when it never was or was deleted."""
        first = self.next_version - len(self.versions)
        return self.versions[version - first] if first <= version < self.next_version else None

    def with_digest(self, digest: bytes) -> StoredSchema | None:
        """The version of the same schema, the newest of them."""
        return next((each for each in reversed(self.versions) if each.digest == digest), None)

    def added(self, stored: StoredSchema) -> History:
        """With one version more."""
        assert stored.version == self.next_version, f"version {stored.version} after {self.next_version - 1}"
        return History((*self.versions, stored), self.next_version + 1)

    def deleted(self) -> History:
        """After a deletion, which takes a version itself."""
        return History((), self.next_version + 1)

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory."""
        return _OVERHEAD_BYTES + sum(each.size_bytes for each in self.versions)


class HistoryCache:
    """Histories by path, within a budget of bytes."""

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
        """Forget every path below `parent`."""
        for path in [each for each in self._histories if each.startswith(f"{parent}/")]:
            self.drop(path)
