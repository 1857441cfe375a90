"""A process at its limit of open files: operations wait or are refused with the reason, and continue afterwards."""

import asyncio
import errno
from random import Random

import pytest
from tests.unit.local_store.faults import WRITERS, fails, faulty_store
from tests.unit.local_store.stores import SMALL, read_all

from pybroker.errors import StorageFull

NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
PAYLOADS = [b"%d" % number * 300 for number in range(30)]


@pytest.mark.parametrize("writes_direct", WRITERS, ids=["thread", "direct"])
@pytest.mark.parametrize("number", NO_DESCRIPTOR)
async def test_checkpoint_without_descriptors_is_retried(number: int, writes_direct: bool) -> None:
    it = await faulty_store(writes_direct=writes_direct)
    ledger_id = await it.store.create_ledger()
    await it.append(ledger_id, 0, *PAYLOADS)
    it.disk.plan = fails(number, "open", "create", "sync_directory")
    running = asyncio.ensure_future(it.store._checkpointer.run())
    await it.until(lambda: it.store.stats().checkpoint_retries >= 2)
    with pytest.raises(StorageFull, match=r"cannot open more files.*ulimit"):
        it.listener.append(it.store, ledger_id, len(PAYLOADS), [b"refused"])
    it.listener.open_runs = 0
    assert await it.acknowledge(b"1") is None
    it.disk.plan = None
    assert await running
    await it.has_space()
    await it.append(ledger_id, len(PAYLOADS), b"goes on")
    assert it.fatal == []
    again = await it.again(Random(1))
    assert await read_all(again.store, ledger_id) == [*PAYLOADS, b"goes on"]
    await again.store.close()


@pytest.mark.parametrize("writes_direct", WRITERS, ids=["thread", "direct"])
async def test_journal_without_next_file_refuses_and_continues(writes_direct: bool) -> None:
    it = await faulty_store(writes_direct=writes_direct)
    ledger_ids = [await it.store.create_ledger()]
    it.disk.plan = fails(errno.EMFILE, "open", "create")
    stored: list[bytes] = []
    while not it.listener.errors and it.store.refusal() is None:
        payload = b"%d" % len(stored) * 2000
        await it.append(ledger_ids[0], len(stored), payload)
        if not it.listener.errors:
            stored.append(payload)
        assert len(stored) * 2000 < 100 * SMALL.journal_file_bytes, "nothing needed another file"
    it.disk.plan = None
    await it.has_space()
    ledger_ids.append(await it.store.create_ledger())
    await it.append(ledger_ids[1], 0, b"goes on")
    assert it.fatal == []
    again = await it.again(Random(2))
    assert await read_all(again.store, ledger_ids[0]) == stored
    assert await read_all(again.store, ledger_ids[1]) == [b"goes on"]
    await again.store.close()


async def test_cached_open_files_are_closed_for_a_read() -> None:
    it = await faulty_store()
    ledger_ids = [await it.store.create_ledger() for _ in range(2)]
    for ledger_id in ledger_ids:
        await it.append(ledger_id, 0, *PAYLOADS)
        await it.store.seal(ledger_id)
    assert await it.store._checkpointer.run()
    assert await read_all(it.store, ledger_ids[0]) == PAYLOADS
    refused = 0

    def plan(operation: str, name: str) -> None:
        nonlocal refused
        if operation == "open" and name.endswith(".ledger") and not refused:
            refused += 1
            raise OSError(errno.EMFILE, "Too many open files")

    it.disk.plan = plan
    assert await read_all(it.store, ledger_ids[1]) == PAYLOADS
    assert refused == 1
    assert await read_all(it.store, ledger_ids[0]) == PAYLOADS
    await it.store.close()
