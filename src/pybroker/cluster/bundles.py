"""Bundles: ranges of the hash of topic names into which a namespace is divided.

The bundles of a namespace cover every hash exactly once. They are defined by their ascending boundaries alone, from
`0x00000000` to `0xffffffff`. A bundle contains its lower boundary and not its upper one; the last contains both. The
namespace policies store the boundaries.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple
from zlib import crc32

from pybroker.errors import AdminError
from pybroker.model.names import TopicName
from pybroker.model.policies import MAX_BUNDLE_COUNT

HIGHEST_HASH = 2**32 - 1


class Bundle(NamedTuple):
    """A bundle as a range of hashes."""

    lower: int
    upper: int

    def __contains__(self, position: object) -> bool:
        return isinstance(position, int) and (
            self.lower <= position < self.upper or position == self.upper == HIGHEST_HASH
        )

    def __str__(self) -> str:
        return f"0x{self.lower:08x}_0x{self.upper:08x}"


def hash_position(topic: TopicName | str) -> int:
    """Return the topic's position in the hash space of bundles: the CRC-32 of its full name."""
    return crc32(str(topic).encode())


def bundles_of(boundaries: Sequence[str]) -> list[Bundle]:
    assert len(boundaries) > 1, "a namespace has at least one bundle"
    return [Bundle(lower, upper) for lower, upper in pairwise(int(boundary, 16) for boundary in boundaries)]


def find_bundle(topic: TopicName, boundaries: Sequence[str]) -> Bundle:
    bundles = bundles_of(boundaries)
    found = bundles[bisect_right(bundles, hash_position(topic), key=lambda bundle: bundle.lower) - 1]
    assert hash_position(topic) in found, "a hash that no bundle contains"
    return found


def checked_bundle(text: str, boundaries: Sequence[str]) -> Bundle:
    """Parse a bundle such as `0x00000000_0x40000000`. Raises AdminError 412 unless its limits are two adjacent
    `boundaries`.
    """
    lower, separator, upper = text.partition("_")
    try:
        named = Bundle(int(lower, 16), int(upper, 16))
    except ValueError:
        named = None
    if not separator or named is None:
        raise AdminError(412, f"Invalid bundle range: {text}; use the form 0x00000000_0x40000000")
    if named not in bundles_of(boundaries):
        raise AdminError(
            412, f"The namespace has no bundle {text}: the boundaries of its bundles are {', '.join(boundaries)}"
        )
    return named


def fullest_bundle(boundaries: Sequence[str], topic_positions: Sequence[int]) -> Bundle | None:
    """Return the bundle with the largest number of topics; the first one if several have equally many.
    `topic_positions`: the hash positions of the topics. None without topics.
    """
    if not topic_positions:
        return None
    positions = sorted(topic_positions)

    def topic_count(bundle: Bundle) -> int:
        end = bisect_right if bundle.upper == HIGHEST_HASH else bisect_left
        return end(positions, bundle.upper) - bisect_left(positions, bundle.lower)

    return max(bundles_of(boundaries), key=topic_count)


def split_boundaries(boundaries: Sequence[str], bundle: Bundle, positions: Sequence[int]) -> list[str]:
    """Return the bundle boundaries of the namespace after `bundle` is split at `positions`. Raises AdminError 412 if
    the namespace would have too many bundles.
    """
    cut = sorted({*(int(boundary, 16) for boundary in boundaries), *positions})
    if len(cut) - 1 > MAX_BUNDLE_COUNT:
        raise AdminError(412, f"The namespace already has {MAX_BUNDLE_COUNT} bundles, which is the maximum")
    assert all(bundle.lower < position < bundle.upper for position in positions)
    return [f"0x{boundary:08x}" for boundary in cut]
