"""`--watch` writes a block each time, and shows failures after the first time."""

import io
import json
from argparse import ArgumentTypeError

import pytest

from pybroker.cli import watching
from pybroker.cli.exit_codes import CommandFailed
from pybroker.cli.output import Output


class Stop(Exception):
    """Ends the watching in place of Ctrl-C."""


class Drawing:
    """Writes the number of the time; fails at the given times."""

    def __init__(self, *fails_at: int) -> None:
        self.times = 0
        self._fails_at = fails_at

    def __call__(self, output: Output) -> None:
        self.times += 1
        if self.times in self._fails_at:
            output.line("half a table")
            raise CommandFailed("gone\x1b[2J")
        if output.is_json:
            output.document({"time": self.times, "name": "grün"})
        else:
            output.line(f"time {self.times}")


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []

    def sleep(pause_s: float) -> None:
        found.append(pause_s)
        if len(found) == 3:
            raise Stop

    monkeypatch.setattr("pybroker.cli.watching.time.sleep", sleep)
    return found


def watched(draw: Drawing, *, is_json: bool = False, is_terminal: bool = False) -> str:
    stream = io.StringIO()
    with pytest.raises(Stop):
        watching.show(Output(stream, is_json=is_json, is_terminal=is_terminal), 5.0, draw)
    return stream.getvalue()


def test_without_watch_output_is_written_once() -> None:
    stream, draw = io.StringIO(), Drawing()
    assert watching.show(Output(stream), None, draw) == 0
    assert stream.getvalue() == "time 1\n"


def test_pipe_gets_blocks_without_control_characters(pauses: list[float]) -> None:
    text = watched(Drawing())
    assert [line for line in text.splitlines() if line.startswith("time")] == ["time 1", "time 2", "time 3"]
    assert "every 5s; Ctrl-C ends" in text
    assert "\x1b" not in text
    assert pauses == [5.0, 5.0, 5.0]


def test_json_is_one_line_each_time(pauses: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    text = watched(Drawing(2), is_json=True)
    first, failure, last = text.splitlines()
    assert (first, last) == ('{"time": 1, "name": "grün"}', '{"time": 3, "name": "grün"}')
    assert json.loads(failure) == {"error": "gone\x1b[2J"}
    assert capsys.readouterr().err == ""


def test_terminal_is_redrawn_and_keeps_last_state_on_failure(pauses: list[float]) -> None:
    text = watched(Drawing(2), is_terminal=True)
    assert text.count(watching.CLEAR) == 2
    assert "half a table" not in text
    assert "gone\\x1b[2J" in text


def test_first_failure_ends_the_command(pauses: list[float]) -> None:
    with pytest.raises(CommandFailed):
        watching.show(Output(io.StringIO()), 5.0, Drawing(1))
    assert pauses == []


def test_pause_rejects_names_and_tiny_times() -> None:
    assert watching.pause("500ms") == 0.5
    for text in ("orders", "0.01", "-1"):
        with pytest.raises(ArgumentTypeError):
            watching.pause(text)
