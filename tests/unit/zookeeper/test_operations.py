"""Bodies of requests and answers."""

from __future__ import annotations

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.zookeeper import operations as wire
from pybroker.zookeeper.errors import BadVersion, DamagedAnswer, NoNode, ZooKeeperError
from pybroker.zookeeper.jute import Reader
from pybroker.zookeeper.operations import (
    OPEN_ACL,
    CheckOp,
    ChildrenOp,
    CreateMode,
    CreateOp,
    DeleteOp,
    GetOp,
    Operation,
    SetOp,
    Stat,
)

STAT = Stat(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
STAT_BYTES = pack(">qqqqiiiqiiq", *STAT)


def text(value: str) -> bytes:
    data = value.encode()
    return pack(">i", len(data)) + data


def header(operation: int, *, is_end: bool = False, code: int = 0) -> bytes:
    return pack(">ibi", operation, is_end, code)


END = header(-1, is_end=True, code=-1)


def test_multi_body_has_a_header_for_each_change_and_an_end() -> None:
    acl = wire.pack_acl(OPEN_ACL)
    assert acl == pack(">ii", 1, 31) + text("world") + text("anyone")
    body = wire.multi_body(
        [CreateOp("/a", b"v", CreateMode.CONTAINER), SetOp("/b", b"w", 3), DeleteOp("/c"), CheckOp("/d", 4)], acl
    )
    assert body == b"".join(
        (
            header(19, code=-1) + text("/a") + text("v") + acl + pack(">i", 4),
            header(5, code=-1) + text("/b") + text("w") + pack(">i", 3),
            header(2, code=-1) + text("/c") + pack(">i", -1),
            header(13, code=-1) + text("/d") + pack(">i", 4),
            END,
        )
    )


def test_multi_answer_has_the_results_in_order() -> None:
    answer = header(15) + text("/a") + STAT_BYTES + header(5) + STAT_BYTES + header(2) + header(13) + END
    assert wire.read_multi(Reader(answer)) == [("/a", STAT), STAT, None, None]


def test_failed_multi_names_the_first_failing_operation() -> None:
    parts = [header(-1, code=code) + pack(">i", code) for code in (0, 0, -103, -2)]
    with pytest.raises(BadVersion) as raised:
        wire.read_multi(Reader(b"".join(parts) + END))
    assert raised.value.operation_index == 2


def test_multi_read_has_errors_of_their_own() -> None:
    names = pack(">i", 2) + text("x") + text("y")
    answer = header(4) + text("v") + STAT_BYTES + header(-1, code=-101) + pack(">i", -101) + header(8) + names + END
    value, error, children = wire.read_multi_read(Reader(answer), ["/a", "/b", "/c"])
    assert value == (b"v", STAT)
    assert isinstance(error, NoNode)
    assert error.path == "/b"
    assert children == ["x", "y"]
    with pytest.raises(DamagedAnswer, match="3 results of 2"):
        wire.read_multi_read(Reader(answer), ["/a", "/b"])
    assert wire.multi_read_body([GetOp("/a"), ChildrenOp("/b")]) == (
        header(4, code=-1) + text("/a") + b"\0" + header(8, code=-1) + text("/b") + b"\0" + END
    )


def test_absent_value_reads_as_empty() -> None:
    assert wire.read_value(Reader(pack(">i", -1) + STAT_BYTES)) == (b"", STAT)


DECODERS = [
    wire.read_value,
    wire.read_created,
    wire.read_children,
    wire.read_stat,
    wire.read_multi,
    wire.read_event,
    lambda reader: wire.read_multi_read(reader, ["/a"]),
]


@given(st.binary(max_size=300), st.sampled_from(DECODERS))
def test_any_answer_is_decoded_or_an_error(data: bytes, decode: object) -> None:
    assert callable(decode)
    try:
        decode(Reader(data))
    except ZooKeeperError:
        return


@pytest.mark.parametrize("count", [1_000_000_000, 5])
def test_long_list_in_a_short_answer_is_damage(count: int) -> None:
    with pytest.raises(DamagedAnswer):
        wire.read_children(Reader(pack(">i", count) + text("a")))


def test_set_watches_has_persistent_watches_only() -> None:
    body = wire.set_watches_body(9, ["/p"], ["/r"])
    empty = pack(">i", 0)
    assert body == pack(">q", 9) + empty * 3 + pack(">i", 1) + text("/p") + pack(">i", 1) + text("/r")
    assert wire.create_operation(CreateMode.EPHEMERAL) is Operation.CREATE
