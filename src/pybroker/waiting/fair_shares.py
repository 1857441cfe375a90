"""Shares of a limited resource whose units stay with their holders until the holders give them back. Pure.

A client could exhaust a resource (transactions, leases, streams, bytes) by keeping its units. The rule:

- one sixteenth of the limit is reserved for superusers;
- a holder may take more units while it has less than three times the free unreserved units.

So a single holder gets at most three quarters of the unreserved units, and a new holder always finds free units.
"""

from __future__ import annotations

from typing import NamedTuple

RESERVE_DIVISOR = 16
"""The reserve for operators is the limit divided by this number."""
FREE_MULTIPLE = 3
"""A holder may take more while it has less than this multiple of the free units."""


class Holder(NamedTuple):
    """Account to which used units are charged: a role, or without authentication a connection or a client address."""

    name: str
    is_operator: bool = False
    """True for a superuser, which may use the reserve and is not limited to a share."""


UNKNOWN = Holder("unknown")
"""The holder of units that clients without a role took before the broker restarted."""


def holder_of_role(role: str | None, *, is_operator: bool = False) -> Holder:
    """Return the holder to which the units of clients with this role are charged; `UNKNOWN` if `role` is None.
    `is_operator`: the role is a superuser.
    """
    return UNKNOWN if role is None else Holder(f"role {role}", is_operator)


class FairShares:
    """Used units of one resource, by holder. The limit is an argument of the methods, because configuration keys can
    change.
    """

    def __init__(self) -> None:
        self.used = 0
        self._used_by: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._used_by)

    def used_by(self, name: str) -> int:
        return self._used_by.get(name, 0)

    def largest(self, count: int) -> list[tuple[str, int]]:
        return sorted(self._used_by.items(), key=lambda each: (-each[1], each[0]))[:count]

    def may_take(self, holder: Holder, limit: int) -> bool:
        if holder.is_operator:
            return self.used < limit
        return self.used_by(holder.name) < FREE_MULTIPLE * self._free(limit)

    def is_full(self, limit: int) -> bool:
        """Return whether no unit is free for holders other than superusers."""
        return self._free(limit) <= 0

    def _free(self, limit: int) -> int:
        return limit - limit // RESERVE_DIVISOR - self.used

    def add(self, name: str, count: int) -> None:
        """Add `count` units to the used units of the holder `name`, even beyond the limit; a negative number gives
        units back.
        """
        now = self.used_by(name) + count
        assert now >= 0, f"{name} released more than it held"
        self.used += count
        if now:
            self._used_by[name] = now
        else:
            self._used_by.pop(name, None)

    def refusal(self, holder: Holder, limit: int, unit: str, key: str) -> str:
        """Return an error text: why `holder` may not take more, and how to free units. `unit`: the plural noun; `key`:
        the configuration key of the limit.
        """
        used = self.used_by(holder.name)
        if used and self._free(limit) > 0:
            return (
                f"{holder.name} holds {used} of {limit} {unit} ({key}), which is its share while other clients use "
                f"{self.used - used}: release some, or retry when other clients have released some"
            )
        return (
            f"{self.used} of {limit} {unit} are in use ({key}), and the rest is reserved for superusers: retry when clients "
            "have released some. GET /admin/v3/shares lists their holders"
        )

    def check_invariants(self) -> None:
        assert self.used == sum(self._used_by.values())
        assert all(count > 0 for count in self._used_by.values())
