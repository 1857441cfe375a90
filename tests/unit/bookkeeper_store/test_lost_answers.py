"""Changes of the documents whose answers are lost: a receipt still means that the next owner finds the state."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from tests.support.pulsar_layout import Layout
from tests.unit.managed_ledger.stack import entry

from pybroker.errors import StoreError, UnknownOutcome
from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.metadata.metadata_store import Change
from pybroker.model.position import EARLIEST, Position

STEPS = 25


class ForgetfulMetadata(MemoryMetadataStore):
    """Loses requests and answers of transactions."""

    def __init__(self, chance: Random) -> None:
        super().__init__()
        self.chance = chance
        self.loss_share = 0.0

    async def change_together(self, changes: Sequence[Change]) -> list[int | None]:
        if self.chance.random() < self.loss_share:
            raise UnknownOutcome("the request was lost")
        versions = await super().change_together(changes)
        if self.chance.random() < self.loss_share:
            raise UnknownOutcome("the answer was lost")
        return versions


async def _story(seed: int) -> None:
    chance = Random(seed)
    metadata = ForgetfulMetadata(chance)
    layout = Layout(seed, metadata)
    acknowledged: set[Position] = set()
    stored: list[Position] = []
    name = "sub"
    for _ in range(3):
        metadata.loss_share = 0.0
        broker = layout.broker(max_cursor_entries=4)
        managed, topic = await broker.open()
        topic.positions = []
        cursor = managed.cursors.get(name) or await broker.factory.create_cursor(managed, name, EARLIEST, {})
        for position in stored:
            is_there = managed.ledgers.has_entry(position)
            assert is_there
            assert position not in acknowledged or cursor.state.is_deleted(*position), f"{position} was acknowledged"
        metadata.loss_share = 0.3
        for number in range(STEPS):
            if chance.random() < 0.6:
                await topic.publish(entry(number))
            elif topic.positions:
                position = chance.choice(stored + topic.positions)
                cursor.state.acknowledge(position.ledger_id, [position.entry_id])
                try:
                    await cursor.persist()
                except StoreError:
                    continue
                acknowledged.add(position)
        assert not topic.failed
        assert not topic.fenced_by, "no other owner has written"
        stored += topic.positions
        if chance.random() < 0.5:
            await broker.crash()
        else:
            metadata.loss_share = 0.0
            await broker.stop()


@pytest.mark.parametrize("seed", range(4))
async def test_receipts_hold_although_answers_are_lost(seed: int) -> None:
    await _story(seed)


@pytest.mark.long
async def test_receipts_hold_although_answers_are_lost_for_long() -> None:
    for seed in range(4, 60):
        await _story(seed)
