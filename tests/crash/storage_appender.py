"""The process that test_storage_kill.py kills: appends for ever and prints what it was promised.

L <ledger id>                          created
E <ledger id> <entries completed>      so many entries of the ledger are durable
C <deltas completed>                   so many deltas of the cursor are durable
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from pybroker.errors import StoreError
from pybroker.ledgers.ledger_store import AppendListener, AppendRun
from pybroker.local_store.local_store import LocalStore
from pybroker.local_store.store_options import LocalStoreOptions

OPTIONS = LocalStoreOptions(
    journal_file_bytes=1 << 20, checkpoint_max_bytes=1 << 20, checkpoint_max_entries=2000, journal_max_bytes=4 << 20
)
RUN_ENTRIES = 7


def payload(ledger_id: int, entry_id: int) -> bytes:
    """What every reader can work out again."""
    return b"%d:%d;" % (ledger_id, entry_id) * (1 + entry_id % 60)


def delta(number: int) -> bytes:
    return b"%d;" % number


def tell(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class Appender(AppendListener):
    """Keeps some runs under way; goes on in a new ledger after a while."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store
        self._completed = 0
        self._changed = asyncio.Event()

    def append_completed(self, runs: list[AppendRun], error: StoreError | None) -> None:
        assert error is None, error
        self._completed += sum(len(run.payloads) for run in runs)
        tell("E", runs[0].ledger_id, self._completed)
        self._changed.set()

    async def run(self) -> None:
        while True:
            ledger_id = await self._store.create_ledger()
            tell("L", ledger_id)
            self._completed = appended = 0
            while appended < 3000:
                while appended - self._completed < 200:
                    payloads = [payload(ledger_id, appended + number) for number in range(RUN_ENTRIES)]
                    size_bytes = sum(map(len, payloads))
                    self._store.append(
                        AppendRun(self, ledger_id, appended, payloads, [1] * RUN_ENTRIES, size_bytes, None)
                    )
                    appended += RUN_ENTRIES
                self._changed.clear()
                await self._changed.wait()
            await self._store.seal(ledger_id)


async def acknowledge(store: LocalStore) -> None:
    number = 0
    while True:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        store.append_delta("cursor", delta(number), lambda _, done=done: done.set_result(None))  # type: ignore[misc]
        await done
        number += 1
        tell("C", number)


async def main(directory: Path) -> None:
    store = await LocalStore.open(directory, OPTIONS, lambda _: os._exit(2))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(Appender(store).run())
        tasks.create_task(Appender(store).run())
        tasks.create_task(acknowledge(store))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
