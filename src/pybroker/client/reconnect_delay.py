"""Pauses between attempts to connect again."""

from __future__ import annotations

FIRST_S = 0.05
LONGEST_S = 3.0


class ReconnectDelay:
    """Pauses that double from `FIRST_S` to `LONGEST_S` seconds, varied by 10 % so that clients do not retry
    simultaneously.
    """

    def __init__(self, spread: float) -> None:
        """`spread` selects the variation: a random number between 0 and 1."""
        self._next_s = FIRST_S * (0.9 + 0.2 * spread)

    def next_s(self) -> float:
        wait_s = self._next_s
        self._next_s = min(2 * wait_s, LONGEST_S)
        return wait_s
