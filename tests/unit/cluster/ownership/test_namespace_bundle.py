"""Bundles of a namespace among its boundaries."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pybroker.cluster.bundles import HIGHEST_HASH, Bundle
from pybroker.cluster.ownership.namespace_bundle import NamespaceBundle, is_bundle_of
from pybroker.model.names import NamespaceName

NAMESPACE = NamespaceName("public", "default")


@given(st.sets(st.integers(1, HIGHEST_HASH - 1), max_size=12), st.data())
def test_only_neighbours_are_a_bundle(inner: set[int], data: st.DataObject) -> None:
    numbers = sorted({0, HIGHEST_HASH, *inner})
    boundaries = [f"0x{number:08x}" for number in numbers]
    present = set(pairwise(numbers))
    any_number = st.one_of(st.sampled_from(numbers), st.integers(0, HIGHEST_HASH))
    lower, upper = data.draw(any_number), data.draw(any_number)
    assert is_bundle_of(NamespaceBundle(NAMESPACE, Bundle(lower, upper)), boundaries) == ((lower, upper) in present)
    for pair in present:
        assert is_bundle_of(NamespaceBundle(NAMESPACE, Bundle(*pair)), boundaries)
