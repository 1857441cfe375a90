"""Moments are milliseconds, or text with a zone or in UTC."""

import pytest

from pybroker.reading.time_text import time_ms

MOMENT_MS = 1_795_406_400_000


@pytest.mark.parametrize(
    "text",
    [str(MOMENT_MS), "2026-11-23T04:00:00Z", "2026-11-23T05:00:00+01:00", "2026-11-23T04:00:00", "2026-11-23 04:00"],
)
def test_a_moment_can_be_written_in_several_ways(text: str) -> None:
    assert time_ms(text) == MOMENT_MS


@pytest.mark.parametrize("text", ["", "yesterday", "3:4", "-5", "1e3", "٣"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        time_ms(text)
