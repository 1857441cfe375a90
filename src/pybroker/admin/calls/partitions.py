"""Partitions of the topic in a REST call."""

from __future__ import annotations

from pybroker.admin.calls.call import Call
from pybroker.errors import AdminError
from pybroker.model.names import TopicName


def topics_of(call: Call, name: TopicName) -> list[TopicName]:
    """Return the partitions of topic `name` in order; only `name` itself if it is not partitioned."""
    metadata = call.broker.partitioned.get(name)
    return [name] if metadata is None else [name.partition(index) for index in range(metadata.partitions)]


def require_not_partitioned(call: Call, name: TopicName, status: int = 405) -> None:
    if call.broker.partitioned.get(name) is not None:
        raise AdminError(
            status,
            f"The topic {name} is partitioned, and this operation works only on one of its partitions, such as "
            f"{name}-partition-0",
        )
