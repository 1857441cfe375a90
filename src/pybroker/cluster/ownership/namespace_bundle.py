"""A bundle of one namespace, and the path of its ownership document."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from pybroker.cluster.bundles import HIGHEST_HASH, Bundle, hash_position
from pybroker.model.names import PERSISTENT, NamespaceName, TopicName, is_valid_entity

PARTS_OF_PATH = 4
OWNERS = "/namespace"
"""Parent of all ownership documents, as in Pulsar."""
WHOLE = Bundle(0, HIGHEST_HASH)
NAME_ATTEMPTS = 200_000
"""Attempts to find the name of a topic in a bundle: enough for 1/20,000 of all hashes, in about 0.1 s."""
_TEXT_LENGTH = len("0x00000000_0x00000000")


class NamespaceBundle(NamedTuple):
    """The unit of ownership: one broker at a time serves the topics of a bundle."""

    namespace: NamespaceName
    range: Bundle

    @property
    def path(self) -> str:
        return f"{OWNERS}/{self.namespace}/{self.range}"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.range}"

    def contains(self, topic: TopicName) -> bool:
        return topic.namespace == self.namespace and hash_position(topic) in self.range


def bundle_of_topic(topic: TopicName, boundaries: Sequence[str]) -> NamespaceBundle:
    """Return the bundle of `topic`. `boundaries`: the bundle boundaries of its namespace, ascending, in the form
    `0x%08x`.
    """
    index = min(bisect_right(boundaries, f"0x{hash_position(topic):08x}"), len(boundaries) - 1)
    return NamespaceBundle(topic.namespace, Bundle(int(boundaries[index - 1], 16), int(boundaries[index], 16)))


def topic_in(bundle: NamespaceBundle) -> TopicName | None:
    """Return a topic name whose hash is in `bundle`; the topic need not exist. None for a very small bundle."""
    for number in range(NAME_ATTEMPTS):
        name = TopicName(PERSISTENT, bundle.namespace, f"__assign-{number}")
        if hash_position(name) in bundle.range:
            return name
    return None


def is_bundle_of(bundle: NamespaceBundle, boundaries: Sequence[str]) -> bool:
    """Return whether `bundle` exists in a namespace with these `boundaries`: its limits are two adjacent boundaries."""
    lower, upper = f"0x{bundle.range.lower:08x}", f"0x{bundle.range.upper:08x}"
    index = bisect_left(boundaries, lower)
    return list(boundaries[index : index + 2]) == [lower, upper]


def bundle_of_path(path: str) -> NamespaceBundle | None:
    """Return the bundle whose ownership document is at `path`; None for other paths."""
    segments = path.removeprefix(OWNERS).split("/")
    if len(segments) != PARTS_OF_PATH or segments[0] or len(segments[3]) != _TEXT_LENGTH:
        return None
    tenant, local_name, text = segments[1:]
    lower, _, upper = text.partition("_")
    try:
        bundle = NamespaceBundle(NamespaceName(tenant, local_name), Bundle(int(lower, 16), int(upper, 16)))
    except ValueError:
        return None
    return bundle if bundle.path == path and is_valid_entity(tenant) and is_valid_entity(local_name) else None
