"""Partitioned topics for routes: the topics of a name, and a refusal where the name must be a single topic.

Operations on all partitions use `topics_of`; operations on a single topic begin with `require_not_partitioned`.
"""

from __future__ import annotations

from pybroker.admin.calls.call import Call
from pybroker.errors import AdminError
from pybroker.model.names import TopicName


def topics_of(call: Call, name: TopicName) -> list[TopicName]:
    """The partitions of the partitioned topic `name`, in order; `name` alone when it is any other."""
    metadata = call.broker.partitioned.get(name)
    return [name] if metadata is None else [name.partition(index) for index in range(metadata.partitions)]


def require_not_partitioned(call: Call, name: TopicName, status: int = 405) -> None:
    """Refuse with `status` the name of a partitioned topic."""
    if call.broker.partitioned.get(name) is not None:
        raise AdminError(status, f"Not possible for partitioned topic {name}: use one of its partitions")
