"""The metadata store on a disk that forgets, beside a model: scripts of steps, faults in any of them, kills and power cuts.

What must hold: what was answered as stored is there after a kill and after a power cut, and so is its deletion; what was refused
is not in force, unless nothing could be written over it any more; what was cut off is there whole or not at all; a database
that lost its end or has an older page in its place is refused, and one that is whole never is.
"""

from __future__ import annotations

import asyncio
import errno
import sqlite3
from collections.abc import Coroutine
from pathlib import Path
from random import Random
from typing import Any

from tests.support.fault_disk import FaultDisk
from tests.support.world import SyncWorld
from tests.unit.local_store.faults import fails
from tests.unit.local_store.stores import PATIENCE_S

from pybroker.disk.disk import Disk
from pybroker.errors import StoreError
from pybroker.metadata.sqlite_metadata_store import SqliteMetadataStore

PATH = Path("/data/metadata.db")
LOG = PATH.name + "-wal"
KEYS = tuple(f"/k{number}" for number in range(6))
# So that the log begins anew often, over its own older frames.
LOG_PAGES = 12
VALUE_BYTES = (1, 100, 3000, 9000)

State = dict[str, bytes]
Step = tuple[str, int, int]


class MetadataDisk(Disk):
    """The database on a faulty disk, with a short log; the mark on the file system, where the model changes it."""

    def __init__(self, databases: FaultDisk) -> None:
        self._databases = databases

    def open_database(self, path: Path) -> sqlite3.Connection:
        connection = self._databases.open_database(path)
        connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
        return connection


class MetadataWorld(SyncWorld):
    """A store and what it may hold: one state for certain, or one of several after something was cut off or refused."""

    def __init__(self, directory: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self.disk = FaultDisk()
        self.mark = directory / "metadata.end"
        self.state: State = {}
        self.others: list[State] = []
        self.counter = 0
        self.marks: list[bytes] = [b""]
        self.older: list[dict[str, bytes]] = []
        self.refused = 0
        self.store: SqliteMetadataStore
        self.open()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, PATIENCE_S))

    def open(self) -> None:
        self.store = self.run(SqliteMetadataStore.open(PATH, MetadataDisk(self.disk), self.mark))

    def end(self) -> None:
        """Let go of the store, whatever happens to it."""
        self.disk.is_off = True
        self.run(self.store.close())

    def discard(self) -> None:
        self.end()
        self.loop.close()
        self.mark.unlink(missing_ok=True)

    # Steps: each takes a number and a seed

    def put(self, count: int, seed: int) -> None:
        """Some values at once, which is one transaction."""
        random = Random(seed)
        changes: dict[str, bytes | None] = {}
        for key in random.sample(KEYS, 1 + count % 4):
            self.counter += 1
            changes[key] = b"%d:" % self.counter + random.randbytes(random.choice(VALUE_BYTES))
        self._change(changes)

    def delete(self, count: int, seed: int) -> None:
        self._change(dict.fromkeys(Random(seed).sample(KEYS, 1 + count % 4)))

    def put_while_syncs_fail(self, times: int, seed: int) -> None:
        """Of the log; what is in it all the same must not come back."""
        self._fail("sync", LOG, times)
        self.put(2, seed)
        self.disk.plan = None

    def put_while_writes_fail(self, operations: int, seed: int) -> None:
        random = Random(seed)
        number = random.choice((errno.EIO, errno.ENOSPC))
        self._fail("write", random.choice(("", "-wal")), 1 + operations % 3, number, after=operations)
        self.put(3, seed)
        self.disk.plan = None

    def kill(self, _: int, seed: int) -> None:
        self._crash(self.disk.after_kill())

    def power_cut(self, _: int, seed: int) -> None:
        self._lose_mark(Random(seed))
        self._crash(self.disk.after_power_loss(Random(seed)))

    def power_cut_while_putting(self, operations: int, seed: int) -> None:
        self.disk.cut_power_after(operations)
        self.put(3, seed)
        self.power_cut(0, seed)

    def stop(self, _: int, seed: int) -> None:
        """In order; then the machine may go off all the same."""
        self.run(self.store.close())
        random = Random(seed)
        if random.random() < 0.5:
            self._lose_mark(random)
            self.disk = self.disk.after_power_loss(random)
        self.reopen()

    def remember(self, _: int, seed: int) -> None:
        """A copy that `stale` may put back, a page or a frame of it or all."""
        self.older.append(self._files())

    def stale(self, _: int, seed: int) -> None:
        """After a kill, some of a file is as it was: refused, or nothing is lost by it. Then all is put back."""
        table = self.store._table
        assert table._mark is not None
        if not self.older or table._mark.read() != table.totals.commits:
            return  # without its mark a database that lost its end cannot be told from an older one
        random = Random(seed)
        older = random.choice(self.older)
        disk = self.disk.after_kill()
        self.end()
        self.disk = disk
        whole = self._files()
        kept_mark = self.mark.read_bytes()
        name = random.choice(sorted(set(older) & set(whole)) or [PATH.name])
        old, new = older.get(name, b""), whole[name]
        begin = random.choice((0, 0, random.randrange(len(new) + 1))) // 512 * 512
        end = random.choice((len(new), begin + 512, begin + 4096, len(new) + len(old)))
        # Of the log also: nothing behind some point ever arrived.
        self._put_back(name, new[:begin] + old[begin:end] + new[end:] if random.random() < 0.7 else new[:begin])
        before = self.state, self.others
        try:
            self.reopen()
        except StoreError:
            self.refused += 1
        else:
            disk = self.disk.after_kill()
            self.end()
            self.disk = disk
        self.state, self.others = before
        for name in set(self._files()) - set(whole):
            self.disk.unlink(PATH.parent / name)
        for name, data in whole.items():
            self._put_back(name, data)
        self.mark.write_bytes(kept_mark)
        self.reopen()

    # What they share

    def _change(self, changes: dict[str, bytes | None]) -> None:
        """All of it in one turn. What is raised by the first is raised by all."""

        async def change() -> bool:
            calls = [
                asyncio.ensure_future(self.store.delete(key) if value is None else self.store.put(key, value))
                for key, value in changes.items()
            ]
            done = [not isinstance(result, BaseException) for result in await _all_of(calls)]  # type: ignore[arg-type]
            assert len(set(done)) <= 1, "a part of a transaction was refused"
            return all(done)

        after = {key: value for key, value in (self.state | changes).items() if value is not None}
        if self.run(change()):
            self.state, self.others = after, []
            self.marks.append(self.mark.read_bytes())
            return
        is_off = self.disk.is_off
        if is_off or self.store._table._must_undo:  # the model takes it from the store whether it could write over it
            self.others.append(after)
        else:
            self.others = []
        if not is_off:
            assert self._found() == self.state, "what was refused is in force"

    def _found(self) -> State:
        async def read() -> State:
            names = await self.store.children("/")
            values = {f"/{name}": await self.store.get(f"/{name}") for name in names}
            return {key: value.value for key, value in values.items() if value is not None}

        return self.run(read())  # type: ignore[no-any-return]

    def reopen(self) -> None:
        self.open()
        found = self._found()
        assert found in (self.state, *self.others), "something is lost, or is there in part, or has come back"
        self.state, self.others = found, []
        self.marks = [self.mark.read_bytes()]

    def _crash(self, survivor: FaultDisk) -> None:
        self.end()
        self.disk = survivor
        self.reopen()

    def _fail(self, operation: str, name_end: str, times: int, number: int = errno.EIO, after: int = 0) -> None:
        self.disk.plan = fails(number, operation, suffix=name_end, after=after, times=times)

    def _lose_mark(self, random: Random) -> None:
        """It was never synced: a power cut leaves any that was ever in it."""
        self.marks.append(self.mark.read_bytes())
        mark = random.choice((self.marks[-1], random.choice(self.marks)))
        self.marks = [mark]
        self.mark.write_bytes(mark)

    def _files(self) -> dict[str, bytes]:
        return {path.name: bytes(content.cached) for path, content in self.disk._names.items()}

    def _put_back(self, name: str, data: bytes) -> None:
        with self.disk.open_for_write(PATH.parent / name) as file:
            file.truncate(0)
            file.write_at((data,), 0, durable=False)
            file.sync()
        self.disk.sync_directory(PATH.parent)


STEPS = (
    "put",
    "delete",
    "put_while_syncs_fail",
    "put_while_writes_fail",
    "kill",
    "power_cut",
    "power_cut_while_putting",
    "stop",
    "remember",
    "stale",
)


def run_script(directory: Path, steps: list[Step]) -> int:
    """How many damaged databases were refused. Raises what does not hold."""
    world = MetadataWorld(directory)
    world.play([*steps, ("power_cut", 0, len(steps))])
    return world.refused


def draw_script(seed: int, length: int) -> list[Step]:
    """Without hypothesis: for planted bugs, where the number of scripts is what counts."""
    random = Random(seed)
    return [
        (random.choice((*STEPS, "put", "put")), random.randrange(14), random.randrange(1 << 16)) for _ in range(length)
    ]


async def _all_of(calls: list[asyncio.Future[Any]]) -> list[Any]:
    await asyncio.wait(calls)
    return [call.exception() or call.result() for call in calls]
