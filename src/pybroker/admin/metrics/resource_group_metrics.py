"""Metrics of resource groups: limits, usage, and the numbers of namespaces that joined and left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pybroker.admin.metrics.exposition_text import Number, Samples, type_line
from pybroker.admin.stats.group_usage import DISPATCH, PUBLISH

if TYPE_CHECKING:
    from pybroker.admin.stats.group_usage import GroupUsage
    from pybroker.metadata.resource_groups import ResourceGroups
_PREFIX = "pulsar_resource_group_"


def resource_group_lines(samples: Samples, groups: ResourceGroups, usage: GroupUsage) -> Iterator[str]:
    """Yield the metric lines; none without resource groups. A quota of 0 or less means unlimited."""
    message_quotas: dict[tuple[str, str], Number] = {}
    byte_quotas: dict[tuple[str, str], Number] = {}
    for name in groups.names():
        group = groups.get(name)
        assert group is not None, "resource groups change only between time slices"
        for done, messages, size_bytes in (
            (PUBLISH, group.publishRateInMsgs, group.publishRateInBytes),
            (DISPATCH, group.dispatchRateInMsgs, group.dispatchRateInBytes),
        ):
            message_quotas[name, done] = messages
            byte_quotas[name, done] = size_bytes
    yield from _used(samples, "calculated_messages_quota", message_quotas)
    yield from _used(samples, "calculated_bytes_quota", byte_quotas)
    yield from _used(samples, "messages_used", usage.messages)
    yield from _used(samples, "bytes_used", usage.bytes)
    yield from _counted(samples, "updates", groups.updates)
    yield from _counted(samples, "namespace_registers", usage.registers)
    yield from _counted(samples, "namespace_unregisters", usage.unregisters)


def _used(samples: Samples, metric: str, values: Mapping[tuple[str, str], Number]) -> Iterator[str]:
    if values:
        yield type_line(f"{_PREFIX}{metric}", "counter")
    for (group, done), value in values.items():
        yield f"{_PREFIX}{metric}_total{samples.labels(ResourceGroup=group, MonitoringClass=done)} {value}\n"


def _counted(samples: Samples, metric: str, values: Mapping[str, int]) -> Iterator[str]:
    if values:
        yield type_line(f"{_PREFIX}{metric}", "counter")
    for group, value in values.items():
        yield f"{_PREFIX}{metric}_total{samples.labels(ResourceGroup=group)} {value}\n"
