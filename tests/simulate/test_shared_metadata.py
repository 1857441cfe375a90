"""Brokers on one simulated ZooKeeper keep their promises, whatever happens to connections and sessions."""

from __future__ import annotations

import pytest
from tests.simulate.shared_metadata_story import SharedMetadataStory


@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(12, 512), marks=pytest.mark.long)])
def test_brokers_on_one_simulated_zookeeper_keep_their_promises(seeds: range) -> None:
    lost_sessions = 0
    for seed in seeds:
        story = SharedMetadataStory.play(seed)
        assert not story.findings, f"SharedMetadataStory.play({seed})"
        lost_sessions += story.lost_sessions
    assert lost_sessions >= len(seeds)


def test_same_seed_gives_the_same_story() -> None:
    one, other = SharedMetadataStory.play(3), SharedMetadataStory.play(3)
    assert (one.counted, one.numbers, one.loop.time()) == (other.counted, other.numbers, other.loop.time())
