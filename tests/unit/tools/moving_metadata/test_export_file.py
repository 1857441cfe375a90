"""The file of `pybroker metadata export`: each value survives, and each damage is detected."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.moved_documents import MOVED, export_of

from pybroker.tools.moving_metadata.export_file import Document, ExportWriter, FileRefused, documents, verify
from pybroker.tools.moving_metadata.portable_documents import are_equal, root_of, type_of

SEGMENTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1, max_size=5).filter(
    lambda text: text not in (".", "..")
)
VALUES = st.one_of(
    st.binary(min_size=1),
    st.recursive(st.none() | st.integers() | st.floats(allow_nan=False), st.lists).map(
        lambda value: json.dumps(value).encode()
    ),
)


def written(found: list[Document]) -> bytes:
    file = io.BytesIO()
    writer = ExportWriter(file, "c1")
    for document in found:
        writer.write(document)
    writer.finish()
    return file.getvalue()


@given(st.lists(st.tuples(SEGMENTS, VALUES)))
def test_values_are_read_as_they_were_written(found: list[tuple[str, bytes]]) -> None:
    expected = [Document(f"/admin/policies/t/{segment}", value) for segment, value in found]
    file = io.BytesIO(written(expected))
    assert verify(file)[:2] == ("c1", len(expected))
    assert list(documents(file)) == expected


def test_documents_of_every_kind_are_written_readably(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in export_of(MOVED, tmp_path / "f").read_bytes().splitlines()]
    assert lines[0] == {"format": "pybroker-metadata", "version": 1, "cluster": "c1"}
    assert lines[-1]["count"] == len(MOVED)
    by_path = {line["path"]: line for line in lines[1:-1]}
    assert by_path["/admin/policies/t"]["json"] == {"adminRoles": [], "allowedClusters": ["c1"]}
    assert "text" in by_path["/admin/local-policies/t/n"]
    assert "base64" in by_path["/pybroker/schemas/t/n/x/00000000000000000001"]
    paths = list(by_path)
    assert paths.index("/admin/local-policies/t/n") < paths.index("/admin/policies/t/n")


def test_file_cut_at_any_byte_is_refused(tmp_path: Path) -> None:
    whole = export_of(MOVED, tmp_path / "f").read_bytes()
    for size in range(len(whole)):
        with pytest.raises(FileRefused):
            verify(io.BytesIO(whole[:size]))
    with pytest.raises(FileRefused, match="continues after its last line"):
        verify(io.BytesIO(whole + b"\n"))


def test_file_with_one_changed_byte_is_refused(tmp_path: Path) -> None:
    whole = export_of(MOVED, tmp_path / "f").read_bytes()
    for position in range(len(whole)):
        changed = bytearray(whole)
        changed[position] ^= 1
        with pytest.raises(FileRefused):
            verify(io.BytesIO(bytes(changed)))


def test_missing_and_repeated_lines_are_refused(tmp_path: Path) -> None:
    lines = export_of(MOVED, tmp_path / "f").read_bytes().splitlines(keepends=True)
    for other in (
        lines[:2] + lines[3:],
        [*lines[:2], lines[1], *lines[2:]],
        [lines[0], lines[2], lines[1], *lines[3:]],
    ):
        with pytest.raises(FileRefused, match="does not fit"):
            verify(io.BytesIO(b"".join(other)))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "ends in line 1"),
        (b"\x00\xff\n", "is not a file of `pybroker metadata export`"),
        (
            b'{"format":"pybroker-metadata","version":2,"cluster":"c1"}\n',
            "format version 2, this version of pybroker reads",
        ),
        (b'{"format":"pybroker-metadata","version":1}\n', "has no cluster"),
        (b'{"format":"pybroker-metadata","version":1,"cluster":"c1"}\n[]\n', "line 2 is not a JSON object"),
        (b"x" * (17 << 20), "longer than"),
    ],
)
def test_other_files_are_refused_with_the_reason(data: bytes, text: str) -> None:
    with pytest.raises(FileRefused, match=text):
        verify(io.BytesIO(data))


@pytest.mark.parametrize(
    "line",
    [
        {"path": "/managed-ledgers/t/n/persistent/x", "text": "1"},
        {"path": "/admin/policies/../x", "text": "1"},
        {"path": "/admin/policies", "text": "1"},
        {"path": "/admin/policies/t/n/deeper", "text": "1"},
        {"path": 5, "text": "1"},
        {"path": "/admin/policies/t"},
        {"path": "/admin/policies/t", "base64": "*"},
    ],
)
def test_documents_that_are_not_moved_are_refused_though_the_digest_fits(line: dict[str, object]) -> None:
    head = b'{"format":"pybroker-metadata","version":1,"cluster":"c1"}\n' + json.dumps(line).encode() + b"\n"
    last = json.dumps({"count": 1, "sha256": hashlib.sha256(head).hexdigest()}).encode() + b"\n"
    with pytest.raises(FileRefused, match="line 2"):
        verify(io.BytesIO(head + last))


def test_each_moved_path_has_a_root_and_a_type() -> None:
    for path in MOVED:
        assert root_of(path) is not None, path
        assert type_of(path) is not None, path


def test_equality_ignores_the_order_of_properties_only() -> None:
    assert are_equal(b'{"a":1,"b":[1,2]}', b'{ "b":[1,2],"a":1}')
    for first, second in ((b"[1,2]", b"[2,1]"), (b"[1]", b"[true]"), (b"x", b"y"), (b"{}", b"")):
        assert not are_equal(first, second)
