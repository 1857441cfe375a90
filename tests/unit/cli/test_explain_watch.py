"""`pybroker explain --watch` until Ctrl-C."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Self

import pytest

from pybroker.cli.commands import explain
from pybroker.cli.exit_codes import CommandFailed
from pybroker.cli.program import main

STUCK = {
    "topic": "persistent://public/default/t",
    "subscription": "s",
    "subject": {"kind": "subscription"},
    "headline": {"text": "Subscription s is stuck", "since": None},
    "waiting": True,
    "findings": [],
}


class FakeRest:
    """A broker that gives one answer after the other; a text is an error."""

    answers: list[dict[str, Any] | str]

    def __init__(self, _: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def partitions(self, name: object) -> list[object]:
        return [name]

    def get(self, path: str, query: object = None) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, str):
            raise CommandFailed(answer)
        return answer


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    def watch(answers: list[dict[str, Any] | str], *arguments: str) -> int:
        FakeRest.answers = [*answers]
        monkeypatch.setattr(explain, "AdminRest", FakeRest)
        monkeypatch.setattr(time, "sleep", sleep)
        return main(["explain", *arguments])

    def sleep(_: float) -> None:
        if not FakeRest.answers:
            raise KeyboardInterrupt

    return watch


def test_watch_writes_again_and_ends_with_130_after_ctrl_c(
    watched: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    well = {**STUCK, "waiting": False, "headline": {"text": "Subscription s is not stuck", "since": None}}
    assert watched([STUCK, "Cannot reach the broker\x1b[2J", well], "t", "s", "--watch=5s") == 130
    written = capsys.readouterr()
    blocks = written.out.split("\n\n")
    assert blocks[0].startswith("Subscription s is stuck\n")
    assert blocks[1].endswith(", every 5s; Ctrl-C ends")
    assert blocks[2].startswith("Subscription s is not stuck\n")
    assert "pybroker: Cannot reach the broker\\x1b[2J\n" in written.err


def test_watch_of_all_topics_with_json_is_one_line_each_time(
    watched: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    answer = {"topics": [], "matching": 0}
    assert watched([answer, "no broker", answer], "--watch", "--json") == 130
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in lines] == [answer, {"error": "no broker"}, answer]


def test_watch_fails_if_the_first_answer_is_an_error(
    watched: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert watched(["there is no topic t"], "t", "--watch") == 1
    assert "there is no topic t" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [("--watch", "orders"), ("t", "--watch=10ms")])
def test_watch_rejects_a_time_that_is_none(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["explain", *arguments])
    assert ended.value.code == 2
    assert "--watch" in capsys.readouterr().err
