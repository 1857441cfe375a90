"""Rate limits of resource groups. On this broker, all topics of a group share one publish limit and one dispatch limit.

While a group's rates do not change, its limits keep their tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.broker.limits.dispatch_rate_limit import DispatchRateLimit, is_limited
from pybroker.broker.limits.publish_rate_limit import PublishRateLimit, renewed_publish_limit
from pybroker.metadata.resource_groups import ResourceGroup, ResourceGroups
from pybroker.model.policies import DispatchRate, PublishRate

if TYPE_CHECKING:
    from pybroker.runtime.runtime import Runtime


class RatesOfGroup:
    """Limits of one resource group; None for no limit."""

    def __init__(self) -> None:
        self.publish_rate_limit: PublishRateLimit | None = None
        self.dispatch_rate_limit: DispatchRateLimit | None = None


_UNLIMITED = RatesOfGroup()


class ResourceGroupRates:
    """Limits of all resource groups on this broker."""

    def __init__(self, runtime: Runtime, groups: ResourceGroups) -> None:
        self._runtime = runtime
        self._groups = groups
        self._limits: dict[str, RatesOfGroup] = {}

    def of(self, name: str | None) -> RatesOfGroup:
        """Return the limits of the group `name`. For an unknown group or None, return an object without limits."""
        group = None if name is None else self._groups.get(name)
        if name is None or group is None:
            return _UNLIMITED
        limits = self._limits.get(name)
        if limits is None:
            limits = self._limits[name] = RatesOfGroup()
            self._apply(limits, group)
        return limits

    def name_of(self, limit: object) -> str | None:
        """Return the name of the resource group with this publish limit; None if it is no group's limit."""
        return next((name for name, each in self._limits.items() if each.publish_rate_limit is limit), None)

    def changed(self, name: str) -> None:
        """Apply changed rates or the deletion of the group `name`. The caller then renews the limits of the group's
        topics.
        """
        limits = self._limits.get(name)
        if limits is not None:
            group = self._groups.get(name)
            if group is None:
                del self._limits[name]
            self._apply(limits, group or ResourceGroup())

    def _apply(self, limits: RatesOfGroup, group: ResourceGroup) -> None:
        rate = PublishRate(group.publishRateInMsgs, group.publishRateInBytes)
        limits.publish_rate_limit = renewed_publish_limit(self._runtime, limits.publish_rate_limit, rate)
        dispatch_rate = DispatchRate(group.dispatchRateInMsgs, group.dispatchRateInBytes, False, 1)
        before = limits.dispatch_rate_limit
        if not is_limited(dispatch_rate):
            limits.dispatch_rate_limit = None
        elif before is None or before.rate != dispatch_rate:
            now_ms = self._runtime.clock.monotonic_ms()
            limits.dispatch_rate_limit = DispatchRateLimit("ResourceGroup", dispatch_rate, now_ms, 0, 0)
