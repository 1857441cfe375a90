"""Split algorithms of bundles, with the names and results of Pulsar, and the choice of the bundle with the most traffic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from pybroker.cluster.bundles import Bundle, bundles_of
from pybroker.cluster.load_balance.load_report import BundleFigures
from pybroker.errors import AdminError

RANGE_EQUALLY_DIVIDE = "range_equally_divide"
TOPIC_COUNT_EQUALLY_DIVIDE = "topic_count_equally_divide"
SPECIFIED_POSITIONS_DIVIDE = "specified_positions_divide"
FLOW_OR_QPS_EQUALLY_DIVIDE = "flow_or_qps_equally_divide"
LEAST_TOPICS = 2
"""A bundle with traffic on fewer topics is not split by its traffic."""


class TopicLoad(NamedTuple):
    """The rates of a topic per second, incoming and outgoing together, with the hash position of its name."""

    position: int
    message_rate: float
    byte_rate: float


class FlowLimits(NamedTuple):
    """Limits of one bundle for `flow_or_qps_equally_divide`."""

    max_message_rate: float
    max_byte_rate: float
    difference_share: float
    """A bundle is split only if one of its rates exceeds the limit by this share of it."""


def split_positions(bundle: Bundle, algorithm: str, topic_positions: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """Return the ascending hash positions at which the algorithm splits `bundle`; empty if it stays whole.
    `topic_positions`: the hash positions of the topics in the bundle. Raises AdminError 412 for an unknown algorithm.

    `wanted`: the positions in the request, which `specified_positions_divide` needs. Positions outside the bundle are
    ignored, as in Pulsar.
    """
    if algorithm == RANGE_EQUALLY_DIVIDE:
        candidates: Iterable[int] = [bundle.lower + (bundle.upper - bundle.lower) // 2]
    elif algorithm == TOPIC_COUNT_EQUALLY_DIVIDE:
        candidates = _middle(sorted(topic_positions))
    elif algorithm == SPECIFIED_POSITIONS_DIVIDE:
        if not wanted:
            raise AdminError(
                412,
                (
                    f"The split algorithm {SPECIFIED_POSITIONS_DIVIDE} needs a list of positions as the body of the "
                    "request"
                ),
            )
        candidates = wanted
    else:
        raise AdminError(412, f"The split algorithm {algorithm} does not exist")
    return sorted({position for position in candidates if bundle.lower < position < bundle.upper})


def _middle(positions: Sequence[int]) -> list[int]:
    """Return a position with half of `positions` on each side; empty if there is none."""
    half = len(positions) // 2
    if half == 0:
        return []
    before, behind = positions[half - 1], positions[half]
    return [before + (behind - before) // 2]


def flow_positions(bundle: Bundle, loads: Iterable[TopicLoad], limits: FlowLimits) -> list[int]:
    """Return the ascending hash positions at which `flow_or_qps_equally_divide` splits `bundle`: each part except the
    last has as many topics as `limits` permit for one bundle. `loads`: the topics of the bundle. Empty if fewer than
    two topics have traffic, or the bundle does not exceed `limits`.
    """
    by_position: dict[int, TopicLoad] = {}
    for each in loads:
        if each.message_rate <= 0 and each.byte_rate <= 0:
            continue
        before = by_position.get(each.position, TopicLoad(each.position, 0.0, 0.0))
        sums = before.message_rate + each.message_rate, before.byte_rate + each.byte_rate
        by_position[each.position] = TopicLoad(each.position, *sums)
    busy = sorted(by_position.values())
    excess = 1 + limits.difference_share
    message_rate, byte_rate = sum(each.message_rate for each in busy), sum(each.byte_rate for each in busy)
    is_within = message_rate < limits.max_message_rate * excess and byte_rate < limits.max_byte_rate * excess
    if len(busy) < LEAST_TOPICS or is_within:
        return []
    found: list[int] = []
    message_rate, byte_rate = busy[0].message_rate, busy[0].byte_rate
    for before, each in pairwise(busy):
        message_rate, byte_rate = message_rate + each.message_rate, byte_rate + each.byte_rate
        if message_rate > limits.max_message_rate or byte_rate > limits.max_byte_rate:
            found.append(before.position + (each.position - before.position) // 2 + 1)
            message_rate, byte_rate = each.message_rate, each.byte_rate
    return [position for position in found if bundle.lower < position < bundle.upper]


def hottest_bundle(namespace: str, boundaries: Sequence[str], figures: Mapping[str, BundleFigures]) -> Bundle | None:
    """Return the bundle with the highest byte rate; the first one if several are equal. Bundles without loaded topics
    are ignored; None if there are no others. `figures`: the load by `tenant/namespace/bundle`.
    """
    loads = [(figures.get(f"{namespace}/{bundle}", BundleFigures()), bundle) for bundle in bundles_of(boundaries)]
    loaded = [(figures, bundle) for figures, bundle in loads if figures.topic_count > 0]
    return max(loaded, key=lambda each: each[0].byte_rate)[1] if loaded else None
