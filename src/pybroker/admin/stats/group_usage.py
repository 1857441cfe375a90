"""Published and delivered messages and bytes of each resource group, and numbers of namespaces that joined and left it.

Updated at the end of each rate window.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pybroker.metadata.resources import Resources

PUBLISH = "Publish"
DISPATCH = "Dispatch"


class GroupUsage:
    """Sums per resource group since the broker's start."""

    def __init__(self) -> None:
        self.messages: Counter[tuple[str, str]] = Counter()
        self.bytes: Counter[tuple[str, str]] = Counter()
        self.registers: Counter[str] = Counter()
        self.unregisters: Counter[str] = Counter()
        self._groups: dict[str, str] = {}  # by namespace

    def add(self, group: str | None, done: str, messages: int, size_bytes: int) -> None:
        if group is not None:
            self.messages[group, done] += messages
            self.bytes[group, done] += size_bytes

    def look_at_namespaces(self, resources: Resources) -> None:
        found: dict[str, str] = {}
        for tenant in resources.tenants():
            for namespace in resources.namespaces(tenant):
                policies = resources.namespace(namespace)
                if policies is not None and policies.resource_group_name:
                    found[str(namespace)] = policies.resource_group_name
        for name, group in found.items():
            if self._groups.get(name) != group:
                self.registers[group] += 1
        for name, group in self._groups.items():
            if found.get(name) != group:
                self.unregisters[group] += 1
        self._groups = found
