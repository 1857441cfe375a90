"""How long to wait before something is tried again."""

from __future__ import annotations

FIRST_S = 0.05
LONGEST_S = 3.0


class Backoff:
    """Doubles from `FIRST_S` to `LONGEST_S`, spread by a tenth so that many clients of one broker do not come at once."""

    def __init__(self, spread: float) -> None:
        """`spread`: between 0 and 1, chosen by the caller at random."""
        self._next_s = FIRST_S * (0.9 + 0.2 * spread)

    def next_s(self) -> float:
        """Seconds to wait now."""
        wait_s = self._next_s
        self._next_s = min(2 * wait_s, LONGEST_S)
        return wait_s
