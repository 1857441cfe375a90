"""The file of `pybroker metadata export`: JSON lines, one for each document. It is the same for equal documents.

    {"format":"pybroker-metadata","version":1,"cluster":"c1"}
    {"path":"/admin/policies/t","json":{"adminRoles":[],"allowedClusters":["c1"]}}
    ...
    {"count":1,"sha256":"..."}

A value is kept byte for byte: `json` if the document is written in the same way again, otherwise `text` (UTF-8) or `base64`. The
last line has the number of documents and the digest of all lines before it, so a file that is cut or changed is detected.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

import msgspec

from pybroker.tools.moving_metadata.portable_documents import root_of

FORMAT = "pybroker-metadata"
VERSION = 1
MAX_LINE_BYTES = 16 * 1024 * 1024
"""A value of 1 MiB takes at most 6 MiB."""
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class FileRefused(Exception):
    """The file cannot be used. The text says why."""


class Document(NamedTuple):
    """A value and its path."""

    path: str
    value: bytes


class Summary(NamedTuple):
    """Of a whole file."""

    cluster: str
    documents: int
    sha256: str


class ExportWriter:
    """Writes a header, documents, and the last line, in this order."""

    def __init__(self, file: IO[bytes], cluster: str) -> None:
        self._file = file
        self._cluster = cluster
        self._digest = hashlib.sha256()
        self._count = 0
        self._write({"format": FORMAT, "version": VERSION, "cluster": cluster})

    def write(self, document: Document) -> None:
        self._write({"path": document.path, **_encoded(document.value)})
        self._count += 1

    def finish(self) -> Summary:
        summary = Summary(self._cluster, self._count, self._digest.hexdigest())
        self._write({"count": summary.documents, "sha256": summary.sha256})
        return summary

    def _write(self, line: dict[str, Any]) -> None:
        data = msgspec.json.encode(line) + b"\n"
        self._digest.update(data)
        self._file.write(data)


def read_header(file: IO[bytes]) -> str:
    """Return the name of the cluster. Raises FileRefused."""
    return _header(_line(file, 1))


def verify(file: IO[bytes]) -> Summary:
    """Read the whole file. Raises FileRefused that names the first damaged line."""
    reader = _Reader(file)
    for _ in reader.documents():
        pass
    assert reader.summary is not None, "documents() ends with the last line"
    return reader.summary


def documents(file: IO[bytes]) -> Iterator[Document]:
    """Yield the documents. Raises FileRefused for a damaged file, at its end at the latest: call `verify` before."""
    return _Reader(file).documents()


class _Reader:
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.summary: Summary | None = None

    def documents(self) -> Iterator[Document]:
        self._file.seek(0)
        first = _line(self._file, 1)
        cluster = _header(first)
        digest = hashlib.sha256(first)
        count = 0
        while True:
            number = count + 2
            data = _line(self._file, number)
            line = _object(data, number)
            if "path" not in line:
                break
            yield _document(line, number)
            digest.update(data)
            count += 1
        if line.get("count") != count or line.get("sha256") != digest.hexdigest():
            raise FileRefused(
                f"the file is damaged: its last line, {number}, does not fit the {count} documents before it"
            )
        if self._file.read(1):
            raise FileRefused(f"the file is damaged: it continues after its last line, {number}")
        self.summary = Summary(cluster, count, digest.hexdigest())


def _line(file: IO[bytes], number: int) -> bytes:
    data = file.readline(MAX_LINE_BYTES + 1)
    if len(data) > MAX_LINE_BYTES:
        raise FileRefused(f"the file is damaged: line {number} is longer than {MAX_LINE_BYTES} bytes")
    if not data.endswith(b"\n"):
        raise FileRefused(f"the file is incomplete: it ends in line {number}, without its last line")
    return data


def _object(data: bytes, number: int) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(data)
    except _UNREADABLE as error:
        raise FileRefused(f"the file is damaged: line {number} is not JSON ({error})") from error
    if not isinstance(found, dict):
        raise FileRefused(f"the file is damaged: line {number} is not a JSON object")
    return found


def _header(data: bytes) -> str:
    try:
        header = _object(data, 1)
    except FileRefused:
        header = {}
    version, cluster = header.get("version"), header.get("cluster")
    if header.get("format") != FORMAT or not isinstance(version, int):
        raise FileRefused("it is not a file of `pybroker metadata export`")
    if version > VERSION:
        raise FileRefused(
            f"the file has format version {version}, this version of pybroker reads up to {VERSION}: use the newer version"
        )
    if not isinstance(cluster, str):
        raise FileRefused("the file is damaged: line 1 has no cluster")
    return cluster


def _document(line: dict[str, Any], number: int) -> Document:
    path = line["path"]
    if not isinstance(path, str) or root_of(path) is None:
        raise FileRefused(
            f"line {number} of the file has the path {path!r}, which this version of pybroker does not import"
        )
    try:
        match line:
            case {"json": value}:
                return Document(path, msgspec.json.encode(value))
            case {"text": str(text)}:
                return Document(path, text.encode())
            case {"base64": str(text)}:
                return Document(path, base64.b64decode(text, validate=True))
    except ValueError as error:
        raise FileRefused(f"the file is damaged: line {number} has no readable value ({error})") from error
    raise FileRefused(f"the file is damaged: line {number} has no value")


def _encoded(value: bytes) -> dict[str, Any]:
    try:
        text = value.decode()
        document = msgspec.json.decode(value)
        if msgspec.json.encode(document) == value:
            return {"json": document}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
    except (msgspec.DecodeError, RecursionError):
        pass
    return {"text": text}
