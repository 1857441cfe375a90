"""Ids, times and quantities are taken as people write them, and nothing else is."""

from argparse import ArgumentTypeError
from collections.abc import Callable

import pytest

from pybroker.cli import parsed_arguments
from pybroker.cli.parsed_arguments import GivenId, Start


@pytest.mark.parametrize(
    ("text", "wanted", "in_rest"),
    [
        ("12:345", GivenId(12, 345), "12:345"),
        ("12:345:0", GivenId(12, 345, 0), "12:345:0"),
        ("12:345:-1:-1", GivenId(12, 345), "12:345"),
        ("12:345:3:2", GivenId(12, 345, 2, 3), "12:345:2"),
        ("0:0", GivenId(0, 0), "0:0"),
    ],
)
def test_an_id_is_taken_in_each_of_its_forms(text: str, wanted: GivenId, in_rest: str) -> None:
    assert parsed_arguments.message_id(text) == wanted
    assert str(wanted) == in_rest


@pytest.mark.parametrize(
    "text",
    ["", "12", "a:b", "1:-1", "1:2:-1", "-1:2", "1:2:3:4:5", "1:" + "9" * 19, "1:²", "1:" + "1" * 5000, "1:2:3:-2"],
)
def test_what_is_no_id_is_refused_in_a_short_line(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="not a message id") as refused:
        parsed_arguments.message_id(text)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("500ms", 0.5),
        ("30s", 30),
        ("30", 30),
        ("1.5m", 90),
        ("2h", 7200),
        ("7d", 604_800),
        ("1w", 604_800),
        ("1y", 31_536_000),
    ],
)
def test_durations_have_units(text: str, wanted: float) -> None:
    assert parsed_arguments.seconds(text) == pytest.approx(wanted)


def test_a_time_without_a_zone_is_utc() -> None:
    assert (
        parsed_arguments.time_ms("2026-11-23T04:00:00")
        == parsed_arguments.time_ms("2026-11-23T04:00:00Z")
        == 1_795_406_400_000
    )
    assert parsed_arguments.time_ms("1795406400000") == 1_795_406_400_000


def test_a_start_is_a_word_an_id_or_a_time() -> None:
    assert parsed_arguments.start("latest") == Start("latest")
    assert parsed_arguments.start("5:7") == Start(id=GivenId(5, 7))
    assert parsed_arguments.start("1970-01-01T00:00:01Z") == Start(time_ms=1000)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (parsed_arguments.seconds, "soon"),
        (parsed_arguments.seconds, "-5s"),
        (parsed_arguments.seconds, "9" * 13),
        (parsed_arguments.time_ms, "tomorrow"),
        (parsed_arguments.start, "newest"),
        (parsed_arguments.count, "0"),
        (parsed_arguments.count, "-1"),
        (parsed_arguments.number, "x"),
        (parsed_arguments.pair, "novalue"),
        (parsed_arguments.pair, "=x"),
        (parsed_arguments.topic, "a/b"),
        (parsed_arguments.namespace_or_tenant, "a/b/c"),
        (parsed_arguments.base64_bytes, "%%%"),
    ],
)
def test_what_cannot_be_meant_is_refused(kind: Callable[[str], object], text: str) -> None:
    with pytest.raises(ArgumentTypeError):
        kind(text)
