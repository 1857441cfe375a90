"""One event is one line, whatever the values are, and a log call never raises."""

import io
import json
import math
import re
from pathlib import Path

import pytest

from pybroker.runtime import logs


@pytest.fixture
def output() -> io.StringIO:
    stream = io.StringIO()
    logs.configure("info", stream)
    return stream


def test_a_line_is_time_level_event_and_fields(output: io.StringIO) -> None:
    logs.info("topic.loaded", topic="persistent://public/default/t", took_ms=3)
    pattern = (
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO topic.loaded topic=persistent://public/default/t took_ms=3\n"
    )
    assert re.fullmatch(pattern, output.getvalue())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        ("two words", '"two words"'),
        ("", '""'),
        ('a"b', '"a\\"b"'),
        ("a=b", '"a=b"'),
        ("line\nINFO forged.event", '"line\\nINFO forged.event"'),
        ("\x1b[31m", '"\\u001b[31m"'),
        ("ä", '"\\u00e4"'),
        (None, "None"),
        (True, "True"),
        ((1, 2), '"(1, 2)"'),
    ],
)
def test_a_value_that_could_be_misread_is_quoted(output: io.StringIO, value: object, text: str) -> None:
    logs.info("event.seen", value=value)
    assert output.getvalue().endswith(f" event.seen value={text}\n")
    assert output.getvalue().count("\n") == 1


def test_a_long_value_is_cut(output: io.StringIO) -> None:
    logs.info("event.seen", value="x" * 5_000_000)
    assert len(output.getvalue()) < logs.MAX_VALUE_CHARACTERS + 200
    assert output.getvalue().endswith("xx...\n")


def test_the_level_can_be_changed_while_running(output: io.StringIO) -> None:
    logs.debug("event.hidden")
    logs.set_level("debug")
    logs.debug("event.shown")
    logs.set_level("error")
    logs.warning("event.hidden")
    assert [line.split(" ")[2] for line in output.getvalue().splitlines()] == ["event.shown"]


def test_an_exception_is_told_in_indented_lines(output: io.StringIO) -> None:
    try:
        raise ValueError("no such\nthing")
    except ValueError as error:
        logs.error("task.failed", task="t", exc_info=error)
    first, *others = output.getvalue().splitlines()
    assert first.endswith("ERROR task.failed task=t")
    assert others
    assert all(line.startswith("    ") for line in others)


def test_a_value_that_cannot_be_shown_does_not_lose_the_event(output: io.StringIO) -> None:
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError

    logs.info("event.seen", value=Broken())
    assert "<Broken: RuntimeError>" in output.getvalue()


@pytest.mark.parametrize("name", ["name", "message", "args", "level", "msg", "event", "extra"])
def test_no_field_name_clashes_with_the_library(output: io.StringIO, name: str) -> None:
    logs.info("event.seen", **{name: "x"})
    assert output.getvalue().endswith(f"event.seen {name}=x\n")


def test_a_closed_stream_does_not_raise() -> None:
    stream = io.StringIO()
    logs.configure("info", stream)
    stream.close()
    logs.info("event.seen")


def test_json_line_has_fields_and_stack() -> None:
    stream = io.StringIO()
    logs.configure("debug", stream, log_format="json")
    try:
        raise ValueError("broken\nin two lines")
    except ValueError:
        logs.error(
            "topic.failed",
            exc_info=True,
            topic='a"b\n',
            took_ms=1.5,
            count=3,
            ratio=math.nan,
            is_new=True,
            path=Path("x"),
        )
    (line,) = stream.getvalue().splitlines()
    document = json.loads(line)
    assert document.pop("time").endswith("Z")
    assert "ValueError: broken\nin two lines" in document.pop("stack")
    assert document == {
        "level": "ERROR",
        "event": "topic.failed",
        "topic": 'a"b\n',
        "took_ms": 1.5,
        "count": 3,
        "ratio": "nan",
        "is_new": True,
        "path": "x",
    }
