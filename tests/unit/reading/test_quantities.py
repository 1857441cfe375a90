"""Moments are milliseconds, or text with a zone or in UTC; sizes are bytes, or have a unit of 1024."""

import pytest

from pybroker.reading.quantities import size_bytes, time_ms

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


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("512", 512), ("64k", 65_536), ("1 MiB", 1 << 20), ("2GB", 2 << 30), (" 1t ", 1 << 40), ("5b", 5)],
)
def test_a_size_has_a_unit_or_is_bytes(text: str, size: int) -> None:
    assert size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "m", "-1", "1.5m", "1e3", "10 apples", "9" * 16, "9" * 1_000_000, "٣"])
def test_what_is_no_size_is_refused_in_few_words(text: str) -> None:
    with pytest.raises(ValueError, match="not a size") as refused:
        size_bytes(text)
    assert len(str(refused.value)) < 200
