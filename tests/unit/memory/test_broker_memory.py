"""Tasks wait for memory in turn, and all memory is given back, however they end."""

from __future__ import annotations

import asyncio

import pytest

from pybroker.memory.broker_memory import DELIVERY_BYTES, LEAST_DELIVERY_BYTES, AheadHolder, Holding, Memory
from pybroker.memory.memory_parts import MIB, OwnBounds, counted_bytes, process_limit_bytes, write_buffers
from pybroker.runtime.clock import Clock


class Holder(AheadHolder):
    has_given_way = False

    def give_way(self) -> None:
        self.has_given_way = True


@pytest.fixture
def memory() -> Memory:
    """Reads may take 4 MiB."""
    return Memory(300 * MIB, OwnBounds(reads=4 * MIB), Clock())


async def waiting(memory: Memory, count: int) -> None:
    """Run one iteration, in which tasks begin to wait. Return their number."""
    await asyncio.sleep(0)
    assert memory.budget.waiting == count


async def test_who_does_not_fit_waits_until_somebody_gives_back(memory: Memory) -> None:
    first = await memory.take(memory.reads, "a", 3 * MIB)
    second = asyncio.ensure_future(memory.take(memory.reads, "b", 2 * MIB))
    await waiting(memory, 1)
    memory.give_back(memory.reads, first)
    memory.give_back(memory.reads, await second)
    assert memory.budget.used_bytes == 0


async def test_who_is_cancelled_while_it_waits_holds_nothing(memory: Memory) -> None:
    first = await memory.take(memory.reads, "a", 4 * MIB)
    second = asyncio.ensure_future(memory.take(memory.reads, "b", MIB))
    await waiting(memory, 1)
    second.cancel()
    await asyncio.wait([second])
    assert memory.budget.waiting == 0
    memory.give_back(memory.reads, first)
    assert memory.budget.used_bytes == memory.reads.takers == 0


async def test_who_is_cancelled_in_the_moment_of_its_turn_gives_back_what_it_got(memory: Memory) -> None:
    first = await memory.take(memory.reads, "a", 4 * MIB)
    second = asyncio.ensure_future(memory.take(memory.reads, "b", MIB))
    await waiting(memory, 1)
    memory.give_back(memory.reads, first)
    second.cancel()
    await asyncio.wait([second])
    assert memory.budget.used_bytes == memory.reads.takers == 0


async def test_a_request_beyond_all_there_is_gets_all_there_is(memory: Memory) -> None:
    assert await memory.take(memory.reads, "a", 100 * MIB) == memory.reads.most_bytes


async def test_what_was_read_ahead_gives_way_to_who_needs_it(memory: Memory) -> None:
    oldest, newest = Holder(), Holder()
    memory.follow(memory.reads.hold(oldest, 2 * MIB))
    memory.follow(memory.reads.hold(newest, MIB))
    await memory.take(memory.reads, "a", 2 * MIB)
    assert oldest.has_given_way
    assert not newest.has_given_way


async def test_deliveries_are_small_while_outboxes_have_no_room(memory: Memory) -> None:
    assert memory.delivery_bytes == DELIVERY_BYTES
    memory.outboxes.count(memory.outboxes.most_bytes)
    assert memory.delivery_bytes == LEAST_DELIVERY_BYTES


def test_a_limit_that_is_asked_for_counts_and_else_a_share_of_what_is_there() -> None:
    assert process_limit_bytes(300 * MIB, 8 << 30, is_of_group=False) == 300 * MIB
    assert process_limit_bytes(0, 1000 * MIB, is_of_group=True) == 900 * MIB
    assert process_limit_bytes(0, 8 << 30, is_of_group=False) == 4 << 30
    assert process_limit_bytes(0, 0, is_of_group=False) > 512 * MIB


@pytest.mark.parametrize("limit_mb", [1, 64, 128, 300, 2048, 1 << 20])
def test_every_part_has_room_with_any_limit(limit_mb: int) -> None:
    memory = Memory(limit_mb * MIB, OwnBounds(), Clock())
    assert memory.budget.limit_bytes == counted_bytes(limit_mb * MIB)
    assert all(part.room() > 0 for part in memory.budget.parts.values())


def test_write_buffers_are_two_checkpoints_within_their_part() -> None:
    assert write_buffers(32 * MIB, 1000 * MIB) == (32 * MIB, 64 * MIB)
    assert write_buffers(100 * MIB, 1000 * MIB) == (100 * MIB, 200 * MIB)
    assert write_buffers(32 * MIB, 50 * MIB) == (25 * MIB, 50 * MIB)
    assert write_buffers(MIB, 1000 * MIB) == (MIB, 64 * MIB), "frequent checkpoints are no reason to wait for each"


def test_what_is_held_beyond_a_floor_is_counted_and_given_back(memory: Memory) -> None:
    holding = Holding(memory, memory.answers)
    holding.count(100)
    assert (holding.size_bytes, memory.answers.used_bytes) == (100, 100)
    holding.close()
    holding.close()
    assert memory.budget.used_bytes == 0


async def test_who_holds_more_than_a_floor_waits_for_the_floor_alone(memory: Memory) -> None:
    floor_bytes = memory.answers.floor_bytes
    large = Holding(memory, memory.answers)
    await large.wait("a", 100 * floor_bytes)
    assert large.size_bytes == memory.answers.used_bytes == 100 * floor_bytes
    small = Holding(memory, memory.answers)
    waits = asyncio.ensure_future(small.wait("b", 1))
    await waiting(memory, 1)
    large.close()
    await waits
    assert memory.answers.used_bytes == 1
    small.close()
    assert memory.budget.used_bytes == memory.answers.takers == 0


async def test_a_holding_that_is_cancelled_while_it_waits_holds_nothing(memory: Memory) -> None:
    large, small = Holding(memory, memory.views), Holding(memory, memory.views)
    await large.wait("a", memory.views.most_bytes)
    waits = asyncio.ensure_future(small.wait("b", 10))
    await waiting(memory, 1)
    waits.cancel()
    await asyncio.wait([waits])
    small.close()
    large.close()
    assert memory.budget.used_bytes == memory.views.takers == memory.budget.waiting == 0
