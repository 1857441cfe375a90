"""Differences between the clocks of the brokers of a cluster, found by the times of their load reports.

A report from the future shows a difference. A report from the past may only have been read late, so two reports in
succession must show it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

LIMIT_MS = 5_000
"""A smaller difference is none: reports and their reading take time."""


class ClockDifferences:
    """The differences between clocks that the registrations of brokers show. Call `add` for each registration that is
    read.
    """

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, int]] = {}  # time of the last new report, difference
        self._found: dict[str, int] = {}

    @property
    def found_ms(self) -> Mapping[str, int]:
        """The milliseconds by which the clock of each broker (by id) is ahead of the clock of this broker; negative if
        it is behind. Only differences above LIMIT_MS.
        """
        return self._found

    def add(self, broker_id: str, reported_ms: int, now_ms: int, *, is_new: bool) -> None:
        """Compare the time of a broker's load report, `reported_ms`, with this broker's clock, `now_ms` (both in
        milliseconds since 1970). `is_new`: the report was stored just now. `reported_ms` 0: the broker has measured
        nothing.
        """
        time_ms, before_ms = self._last.get(broker_id, (0, 0))
        if reported_ms <= 0 or reported_ms == time_ms:
            return
        difference_ms = reported_ms - now_ms
        if difference_ms <= 0 and not is_new:
            return
        self._last[broker_id] = (reported_ms, difference_ms)
        shown_ms = difference_ms if difference_ms > 0 else min(0, max(difference_ms, before_ms))
        if abs(shown_ms) > LIMIT_MS:
            self._found[broker_id] = shown_ms
        else:
            self._found.pop(broker_id, None)

    def keep(self, broker_ids: Collection[str]) -> None:
        for broker_id in self._last.keys() - broker_ids:
            del self._last[broker_id]
            self._found.pop(broker_id, None)
