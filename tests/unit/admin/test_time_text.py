"""Times in REST, for every number that a client may have sent."""

import pytest

from pybroker.admin.time_text import iso_text


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (5, "1970-01-01T00:00:00.005Z"),
        (-5, "1969-12-31T23:59:59.995Z"),
        (1_795_285_340_100, "2026-11-21T18:22:20.1Z"),
        (1_795_285_340_070, "2026-11-21T18:22:20.07Z"),
        (951_782_400_000, "2000-02-29T00:00:00Z"),
        (253_402_300_800_000, "+10000-01-01T00:00:00Z"),
        (1 << 62, "+146140482-04-24T15:36:27.904Z"),
        (5 - (1 << 63), "-292275055-05-16T16:47:04.197Z"),
    ],
)
def test_a_time_is_shown_as_java_shows_it(time_ms: int, text: str) -> None:
    assert iso_text(time_ms) == text
