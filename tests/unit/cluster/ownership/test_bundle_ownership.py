"""Ownership of bundles: stories, random runs of three brokers, and the planted bugs that these find."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.cluster.ownership.ownership_bugs import (
    BUGS,
    BoundariesNotRead,
    ClockIgnored,
    DocumentReplaced,
    LossIgnored,
)
from tests.unit.cluster.ownership.ownership_model import OwnershipModel
from tests.unit.cluster.ownership.ownership_stories import STORIES

from pybroker.cluster.ownership.bundle_ownership import BundleOwnership

Told = Callable[[type[BundleOwnership]], Awaitable[None]]
RUN_DEADLINE_S = 60.0
FOUND_BY_RANDOM_RUNS = (BoundariesNotRead, ClockIgnored, DocumentReplaced, LossIgnored)
MOST_RUNS = 120


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
async def test_ownership(story: Told) -> None:
    await story(BundleOwnership)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
async def test_stories_find_bug(bug: type[BundleOwnership]) -> None:
    failed = []
    for story in STORIES:
        try:
            await story(bug)
        except BaseException as error:  # noqa: BLE001  (also failed assertions and time-outs)
            failed.append((story.__name__, error))
    assert failed, f"no story fails with {bug.__name__}"


async def run(seed: int, kind: type[BundleOwnership] = BundleOwnership) -> OwnershipModel:
    model = OwnershipModel(seed, kind)
    async with asyncio.timeout(RUN_DEADLINE_S):
        await model.run()
    return model


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1 << 30))
def test_two_brokers_never_serve_one_topic(seed: int) -> None:
    asyncio.run(run(seed))


def test_random_runs_serve_topics() -> None:
    assert asyncio.run(run(1)).served > 0
