"""A source is kept for who comes next with the same options, for one at a time, and never after a fork."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.unit.spark.fake_source import FakeSource

from pybroker.client.access import Access
from pybroker.reading.idle_sources import IdleSources
from pybroker.reading.read_options import SourceOptions

HERE = SourceOptions(Access("pulsar://here:6650"))


class Closing(FakeSource):
    """Counts how often it is closed."""

    closed = 0

    def close(self) -> None:
        self.closed += 1


class Opener:
    """All that was opened, in order."""

    def __init__(self) -> None:
        self.sources: list[Closing] = []

    def __call__(self, _: SourceOptions) -> Closing:
        self.sources.append(Closing())
        return self.sources[-1]


def directory(number: int) -> SourceOptions:
    return SourceOptions(HERE.access, data_directory=Path(f"/data/{number}"))


def test_who_comes_next_with_the_same_options_gets_the_same_source() -> None:
    opener = Opener()
    idle = IdleSources(4, opener)
    for options in (HERE, HERE, directory(1), HERE):
        with idle.opened(options):
            pass
    assert [source.closed for source in opener.sources] == [0, 0]
    with idle.opened(HERE) as again:
        assert again is opener.sources[0]


def test_two_at_once_have_a_source_each() -> None:
    opener = Opener()
    idle = IdleSources(4, opener)
    with idle.opened(HERE) as one, idle.opened(HERE) as other:
        assert one is not other


def test_a_source_that_something_went_wrong_with_is_closed_and_not_kept() -> None:
    opener = Opener()
    idle = IdleSources(4, opener)
    with pytest.raises(OSError, match="torn"), idle.opened(HERE):
        raise OSError("torn")
    with idle.opened(HERE) as next_one:
        assert next_one is opener.sources[1]
    assert [source.closed for source in opener.sources] == [1, 0]


def test_the_one_idle_for_longest_makes_room() -> None:
    opener = Opener()
    idle = IdleSources(2, opener)
    for number in (0, 1, 0, 2):
        with idle.opened(directory(number)):
            pass
    assert [source.closed for source in opener.sources] == [0, 1, 0]


def test_closing_takes_what_is_idle_and_leaves_what_is_used() -> None:
    opener = Opener()
    idle = IdleSources(4, opener)
    with idle.opened(directory(1)):
        with idle.opened(directory(2)):
            pass
        idle.close()
        assert [source.closed for source in opener.sources] == [0, 1]
    idle.close()
    assert [source.closed for source in opener.sources] == [1, 1]


def test_after_a_fork_the_parents_sources_are_neither_used_nor_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    opener = Opener()
    idle = IdleSources(4, opener)
    for number in (0, 1):
        with idle.opened(directory(number)):
            pass
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with idle.opened(directory(0)) as own:
        assert own is opener.sources[2]
    idle.close()
    assert [source.closed for source in opener.sources] == [0, 0, 1]
