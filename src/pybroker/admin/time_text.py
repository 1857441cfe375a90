"""ISO 8601 times in REST documents."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_CYCLE_YEARS = 400
_CYCLE_MS = 146_097 * 86_400_000
"""The Gregorian calendar repeats after 400 years."""
_FIRST_YEAR = 2000
_FIRST_MS = 946_684_800_000


def iso_text(time_ms: int) -> str:
    """Format Unix milliseconds as ISO 8601 in UTC, for any year, without trailing zeros in the fraction of a second."""
    cycles, rest_ms = divmod(time_ms - _FIRST_MS, _CYCLE_MS)
    time = datetime(_FIRST_YEAR, 1, 1, tzinfo=UTC) + timedelta(milliseconds=rest_ms)
    year = time.year + cycles * _CYCLE_YEARS
    shown_year = f"{year:04}" if 0 <= year <= 9999 else f"{year:+05}"
    fraction = f".{time.microsecond // 1000:03}".rstrip("0").rstrip(".")
    return f"{shown_year}{time:-%m-%dT%H:%M:%S}{fraction}Z"
