"""Runs of entries in a bitmap of entry ids."""

from __future__ import annotations

from pyroaring import BitMap


def end_of_run(holes: BitMap, entry_id: int) -> int:
    """Return the highest id up to which `holes` contains every id from `entry_id` on. `holes` must contain `entry_id`."""
    low = entry_id
    step = 1
    while holes.contains_range(entry_id, low + step + 1):
        low += step
        step *= 2
    high = low + step  # the run includes `low` and ends before `high`
    while high - low > 1:
        middle = (low + high) // 2
        if holes.contains_range(low, middle + 1):
            low = middle
        else:
            high = middle
    return low
