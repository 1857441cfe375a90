"""What a crash has left in the store without a name is deleted after the next start, and nothing else is."""

import pytest
from tests.unit.managed_ledger.stack import PATH, Stack, entry

from pybroker.managed_ledger.leftovers import delete_leftovers


async def clean(stack: Stack, stored_ids: list[int]) -> list[int]:
    """The ledgers that are in the store once those that were there have been gone through."""
    await delete_leftovers(stack.store, stack.metadata, stored_ids)
    return await stack.store.list_ledgers()


async def test_a_ledger_that_was_made_and_never_named_goes(stack: Stack) -> None:
    managed = await stack.open()
    await stack.topic.publish(*[entry(0)] * 25)
    named = managed.ledgers.ledger_ids()
    left = await stack.store.create_ledger()
    await stack.crash()
    stored = await stack.store.list_ledgers()
    assert stored == [*named, left]
    assert await clean(stack, stored) == named


async def test_what_was_made_since_the_start_is_not_looked_at(stack: Stack) -> None:
    await stack.crash()
    stored = await stack.store.list_ledgers()
    made = await stack.store.create_ledger()
    assert await clean(stack, stored) == [made]


async def test_a_ledger_that_is_to_become_a_view_is_named_while_it_is_written(stack: Stack) -> None:
    managed = await stack.open()
    view = await managed.begin_compacted()
    await stack.crash()
    stored = await stack.store.list_ledgers()
    assert view in stored
    assert await clean(stack, stored) == stored
    await stack.open()
    assert view not in await stack.store.list_ledgers(), "opening its managed ledger deletes it"


@pytest.mark.parametrize("document", [None, b"{"], ids=["lost", "damaged"])
async def test_what_lost_its_name_and_holds_entries_is_kept(stack: Stack, document: bytes | None) -> None:
    managed = await stack.open()
    await stack.topic.publish(entry(0))
    full, empty = managed.current_ledger_id, await stack.store.create_ledger()
    await stack.crash()
    stored = await stack.store.list_ledgers()
    if document is None:
        await stack.metadata.delete(PATH)
        assert await clean(stack, stored) == [full]
    else:
        await stack.metadata.put(PATH, document)
        assert await clean(stack, stored) == [full, empty]
