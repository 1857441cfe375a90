"""The file of exported documents: lines of JSON, first a header and last a checksum.

    {"format": "pybroker-metadata", "version": 1, "cluster": "c1", "layout": 1, "next_start": 12}
    {"path": "/admin/clusters/c1", "value": "{...}"}
    {"path": "/pybroker/schemas/...", "base64": "..."}          a value that is not UTF-8
    {"documents": 2, "sha256": "..."}                           of all bytes before this line

`checked_header` reads the whole file once. A file that is truncated, damaged, or of a newer version is refused before any
of its documents is used.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, TypeVar

import msgspec

from pybroker.errors import StoreError
from pybroker.metadata.transfer.shared_documents import is_shared_path

T = TypeVar("T")
FORMAT = "pybroker-metadata"
VERSION = 1
MAX_LINE_BYTES = 16 << 20
"""A value has up to 1 MB; escaped, it is longer."""
_OWNER_ONLY = 0o600


class Header(msgspec.Struct):
    """The first line of an export: its cluster, versions, and counter of broker starts."""

    cluster: str
    layout: int
    """The version of the documents that only pybroker writes."""
    next_start: int = 0
    """The lowest number of a broker start that no generated name of a producer contains."""
    format: str = FORMAT
    version: int = VERSION


class _Line(msgspec.Struct, omit_defaults=True):
    path: str
    value: str | None = None
    base64: str | None = None


class _End(msgspec.Struct):
    documents: int
    sha256: str


class InvalidExport(StoreError):
    """The file is not a complete export that this version of pybroker can read."""


class ExportWriter:
    """Writes an export file, which gets its name only when it is complete. Only the owner of the file can read it.

    A context manager: an exception in the block removes the unfinished file.
    """

    def __init__(self, path: Path, header: Header) -> None:
        """Create the file with its header. Raises OSError."""
        self._path = path
        self._unfinished = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
        descriptor = os.open(self._unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _OWNER_ONLY)
        self._file = os.fdopen(descriptor, "wb")
        self._digest = hashlib.sha256()
        self.documents = 0
        self._write(header)

    def add(self, path: str, value: bytes) -> None:
        try:
            line = _Line(path, value.decode())
        except UnicodeDecodeError:
            line = _Line(path, base64=base64.b64encode(value).decode())
        self._write(line)
        self.documents += 1

    def _write(self, line: msgspec.Struct) -> None:
        data = msgspec.json.encode(line) + b"\n"
        self._digest.update(data)
        self._file.write(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._write(_End(self.documents, self._digest.hexdigest()))
                self._file.flush()
                os.fsync(self._file.fileno())
            self._file.close()
            if kind is None:
                self._unfinished.replace(self._path)
        finally:
            with suppress(FileNotFoundError):
                self._unfinished.unlink()


def checked_header(path: Path) -> tuple[Header, int]:
    """Check the whole export file, and return its header and its number of documents. Raises InvalidExport, OSError."""
    digest = hashlib.sha256()
    count = -1  # the header
    header: Header | None = None
    with path.open("rb") as file:
        for line in _lines(path, file):
            if header is None:
                header = _header(path, line)
            elif line.startswith(b'{"documents":'):
                end = _decoded(path, line, _End)
                if (end.documents, end.sha256) != (count, digest.hexdigest()):
                    raise InvalidExport(
                        f"The export file {path} is damaged: its checksum does not match. Export the metadata again."
                    )
                if file.read(1):
                    raise InvalidExport(
                        f"The export file {path} is damaged: data follow its last record. Export the metadata again."
                    )
                return header, count
            digest.update(line)
            count += 1
    raise InvalidExport(f"The export file {path} is truncated: its last line is missing. Export the metadata again.")


def exported_documents(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield path and value of each document in an export file that `checked_header` accepted. Raises InvalidExport,
    OSError.
    """
    with path.open("rb") as file:
        lines = _lines(path, file)
        next(lines)
        for data in lines:
            if data.startswith(b'{"documents":'):
                return
            line = _decoded(path, data, _Line)
            if not is_shared_path(line.path) or "//" in line.path or line.path.endswith("/"):
                raise InvalidExport(
                    f"The export file {path} is damaged: it contains {line.path!r}, which is not the path of a metadata "
                    "document. Export the metadata again."
                )
            if line.value is not None:
                yield line.path, line.value.encode()
                continue
            try:
                yield line.path, base64.b64decode(line.base64 or "", validate=True)
            except binascii.Error as error:
                raise InvalidExport(
                    f"The export file {path} is damaged: the value of {line.path} is not base64. Export the metadata again."
                ) from error


def _lines(path: Path, file: BinaryIO) -> Iterator[bytes]:
    while line := file.readline(MAX_LINE_BYTES):
        if not line.endswith(b"\n"):
            raise InvalidExport(
                f"The export file {path} is truncated, or a line has more than {MAX_LINE_BYTES >> 20} MiB. Export the "
                "metadata again."
            )
        yield line


def _header(path: Path, line: bytes) -> Header:
    try:
        facts = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        is_export = msgspec.json.decode(facts["format"]) == FORMAT
    except (msgspec.DecodeError, KeyError):
        is_export = False
    if not is_export:
        raise InvalidExport(f"The file {path} is not a file that `pybroker metadata export` has written.")
    version = _decoded(path, facts.get("version", msgspec.Raw(b"null")), int)
    if version > VERSION:
        raise InvalidExport(
            f"The file {path} has format version {version}, but this version of pybroker reads only versions up to "
            f"{VERSION}: use the newer version."
        )
    return _decoded(path, line, Header)


def _decoded(path: Path, data: bytes | msgspec.Raw, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise InvalidExport(f"The export file {path} is damaged: {error}. Export the metadata again.") from error
