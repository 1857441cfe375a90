"""Files on any fsspec target, with an atomic write that fails if the file exists.

The guarantee of `put_if_absent` depends on the target. A local file system uses a hard link, which holds between
processes and across a power failure; object stores use a conditional write (s3fs, gcsfs and adlfs support it); memory
is safe within one process. Other targets raise OSError.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

# With `mode="create"` these stores refuse an existing object within one request.
CONDITIONAL_WRITERS = ("s3", "s3a", "gs", "gcs", "abfs", "az", "abfss")


class AlreadyThere(Exception):
    """The file exists already: another writer has created it."""


@dataclass(frozen=True)
class StoredFile:
    """A file in the storage, with its size and time of change."""

    location: str
    size_bytes: int
    changed_ms: int


class Storage:
    """Files below one root. A name is a path relative to the root, or a full location."""

    def __init__(self, root: str, options: dict[str, Any] | None = None) -> None:
        self._fs, self._root = fsspec.core.url_to_fs(root, **(options or {}))
        self._root = self._root.rstrip("/")
        self.is_local = isinstance(self._fs, LocalFileSystem)
        protocol = self._fs.protocol if isinstance(self._fs.protocol, str) else self._fs.protocol[0]
        self._prefix = "" if self.is_local else f"{protocol}://"

    @property
    def root(self) -> str:
        return f"{self._prefix}{self._root}"

    def location(self, path: str) -> str:
        return f"{self.root}/{path}"

    def relative(self, location: str) -> str:
        stripped = self._fs._strip_protocol(location)  # noqa: SLF001  (fsspec's documented way for its subclasses)
        assert stripped.startswith(self._root + "/"), f"{location} is not under {self.root}"
        return str(stripped[len(self._root) + 1 :])

    def create(self, location: str) -> IO[bytes]:
        path = self._fs._strip_protocol(location)  # noqa: SLF001
        if self.is_local or isinstance(self._fs, MemoryFileSystem):
            self._fs.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
        opened: IO[bytes] = self._fs.open(path, "wb")
        return opened

    def open(self, location: str) -> IO[bytes]:
        opened: IO[bytes] = self._fs.open(location, "rb")
        return opened

    def read(self, path: str) -> bytes:
        content: bytes = self._fs.cat_file(f"{self._root}/{path}")
        return content

    def read_rows(self, path: str, schema: pa.Schema) -> pa.Table:
        """Read a Parquet file with the columns of `schema`. Columns that the file lacks are null."""
        with self.open(self.location(path)) as opened:
            rows = pq.read_table(opened, partitioning=None)
        columns = [
            rows.column(field.name).cast(field.type)
            if field.name in rows.schema.names
            else pa.nulls(rows.num_rows, field.type)
            for field in schema
        ]
        return pa.Table.from_arrays(columns, schema=schema)

    def exists(self, path: str) -> bool:
        self._fs.invalidate_cache()
        return bool(self._fs.exists(f"{self._root}/{path}"))

    def put_if_absent(self, path: str, content: bytes) -> None:
        """Write the file atomically. Raises AlreadyThere if it exists."""
        target = f"{self._root}/{path}"
        if self.is_local:
            self._link(Path(target), content)
            return
        if isinstance(self._fs, MemoryFileSystem):
            if self._fs.exists(target):
                raise AlreadyThere(path)
            self._fs.pipe_file(target, content)
            return
        protocols = (self._fs.protocol,) if isinstance(self._fs.protocol, str) else self._fs.protocol
        if not set(protocols) & set(CONDITIONAL_WRITERS):
            raise OSError(
                f"the storage {protocols[0]} cannot refuse to overwrite an existing file, so two writers could overwrite each "
                "other: use Iceberg with a catalog, or one of the storages file, " + ", ".join(CONDITIONAL_WRITERS)
            )
        try:
            self._fs.pipe_file(target, content, mode="create")
        except FileExistsError as error:
            raise AlreadyThere(path) from error

    @staticmethod
    def _link(target: Path, content: bytes) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, target)
        except FileExistsError as error:
            raise AlreadyThere(str(target)) from error
        finally:
            temporary.unlink()
        directory = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def replace(self, path: str, content: bytes) -> None:
        target = f"{self._root}/{path}"
        if not self.is_local:
            self._fs.pipe_file(target, content)
            return
        temporary = Path(f"{target}.{uuid.uuid4().hex}.tmp")
        temporary.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        temporary.replace(target)

    def names(self, directory: str) -> list[str]:
        self._fs.invalidate_cache()
        try:
            found = self._fs.ls(f"{self._root}/{directory}", detail=True)
        except FileNotFoundError:
            return []
        return sorted(str(info["name"]).rsplit("/", 1)[-1] for info in found if info["type"] == "file")

    def walk(self) -> Iterator[StoredFile]:
        self._fs.invalidate_cache()
        try:
            found = self._fs.find(self._root, detail=True)
        except FileNotFoundError:
            return
        for name, info in found.items():
            yield StoredFile(self._prefix + name, int(info["size"] or 0), _changed_ms(info))

    def delete(self, location: str) -> None:
        try:
            self._fs.rm_file(self._fs._strip_protocol(location))  # noqa: SLF001
        except FileNotFoundError:
            pass


def _changed_ms(info: dict[str, Any]) -> int:
    """Return the modification time, which targets name and type differently. Without one, return a time that is never old."""
    for key in ("mtime", "LastModified", "last_modified", "modified", "updated", "created"):
        value = info.get(key)
        if isinstance(value, (int, float)):
            return int(value * 1000)
        if value is not None and hasattr(value, "timestamp"):
            return int(value.timestamp() * 1000)
    return 2**62
