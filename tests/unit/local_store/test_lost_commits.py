"""The last commits of `checkpoint.db` are lost: its log is damaged or missing, or both files are of another time.

SQLite takes the first damaged frame of its log for the end, without an error; later commits are lost.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.local_store.stores import SMALL, FilesAtOnce, Listener, Owner, read_all

from pybroker.local_store.journal.journal_recovery import DamagedJournal
from pybroker.local_store.local_store import LocalStore
from pybroker.local_store.store_environment import StoreEnvironment

FIRST = [b"first %d" % number for number in range(50)]
SECOND = [b"second %d" % number for number in range(300)]
LOG = "checkpoint.db-wal"


def never(error: BaseException) -> None:
    raise AssertionError from error


async def opened(directory: Path) -> LocalStore:
    return await LocalStore.open(directory, SMALL, never, StoreEnvironment(threads=FilesAtOnce()))


async def acknowledge(store: LocalStore, cursor_id: str, owner: Owner, delta: bytes) -> None:
    owner.state += delta
    store.append_delta(cursor_id, delta, None)
    await store.flush()


class Killed:
    """A directory that was stopped cleanly, started, written to, and killed; `ledgers` is its expected content."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ledgers: dict[int, list[bytes]] = {}
        self.cursor = b""

    async def make(self, root: Path, checkpoints: int, filling: bytes = b"") -> None:
        running = root / "running"
        owner = Owner()
        store = await opened(running)
        listener, ledger_id = Listener(), await store.create_ledger()
        store.attach("c", owner)
        listener.append(store, ledger_id, 0, FIRST)
        await acknowledge(store, "c", owner, b"1")
        await store.close()
        self.ledgers[ledger_id] = FIRST
        store = await opened(running)
        store.attach("c", owner)
        ledger_id = await store.create_ledger()
        second = self.ledgers[ledger_id] = [payload + filling for payload in SECOND]
        parts = checkpoints + 1
        for part in range(parts):
            start, end = len(second) * part // parts, len(second) * (part + 1) // parts
            listener.append(store, ledger_id, start, second[start:end])
            await acknowledge(store, "c", owner, b"2")
            if part < checkpoints:
                assert await store._checkpointer.run()
        await listener.settled()
        self.cursor = owner.state
        shutil.copytree(running, self.directory)
        await store.close()

    async def check(self) -> None:
        store = await opened(self.directory)
        try:
            for ledger_id, payloads in self.ledgers.items():
                assert await read_all(store, ledger_id) == payloads
            snapshot, deltas = await store.load("c")
            assert b"".join((snapshot or b"", *deltas)) == self.cursor
            assert await store.create_ledger() > max(self.ledgers)
        finally:
            await store.close()


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(bytes(data))


def flip_in_first_frame(log: Path) -> None:
    flip(log, 60)


def flip_in_header(log: Path) -> None:
    flip(log, 17)


def remove(log: Path) -> None:
    log.unlink()


def cut(log: Path) -> None:
    log.write_bytes(log.read_bytes()[:100])


@pytest.mark.parametrize("damage", [flip_in_first_frame, flip_in_header, remove, cut])
async def test_a_clean_mark_that_damage_brings_back_is_not_believed(
    damage: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    killed = Killed(tmp_path / "killed")
    await killed.make(tmp_path, checkpoints=0)
    damage(killed.directory / LOG)
    await killed.check()
    assert "checkpoint.clean_mark_wrong" in caplog.messages


async def test_a_stop_in_order_leaves_no_log_and_no_journal_to_read(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    await store.create_ledger()
    await store.close()
    assert not (tmp_path / LOG).exists() or not (tmp_path / LOG).stat().st_size
    assert [path.name for path in (tmp_path / "journal").glob("0*.journal")] == []


@pytest.mark.parametrize("damage", [flip_in_first_frame, flip_in_header, remove, cut])
@pytest.mark.parametrize("checkpoints", [1, 3])
async def test_lost_transactions_are_made_up_for_by_the_journal_as_long_as_it_has_them(
    checkpoints: int, damage: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    killed = Killed(tmp_path / "killed")
    await killed.make(tmp_path, checkpoints)
    damage(killed.directory / LOG)
    await killed.check()
    assert "checkpoint.commits_lost" in caplog.messages


@pytest.mark.parametrize("damage", [flip_in_first_frame, remove])
async def test_a_table_that_is_older_than_the_journal_is_refused(
    damage: Callable[[Path], None], tmp_path: Path
) -> None:
    """Journal files that the lost transactions covered have been reused."""
    killed = Killed(tmp_path / "killed")
    await killed.make(tmp_path, checkpoints=3, filling=bytes(1000))
    damage(killed.directory / LOG)
    for _ in range(2):
        with pytest.raises(
            DamagedJournal, match=r"\d+.journal is damaged at offset 4096: batches before \d+ are missing"
        ):
            await killed.check()


async def test_a_table_that_is_older_than_an_empty_journal_is_refused(tmp_path: Path) -> None:
    """Killed, started, and killed at once: the second start has stored everything and voided the journal."""
    killed = Killed(tmp_path / "killed")
    await killed.make(tmp_path, checkpoints=0)
    before = {path: path.read_bytes() for path in killed.directory.glob("checkpoint.db*")}
    store = await opened(killed.directory)
    twice = tmp_path / "twice"
    shutil.copytree(killed.directory, twice)
    await store.close()
    for path in twice.glob("checkpoint.db*"):
        path.unlink()
    for path, data in before.items():
        (twice / path.name).write_bytes(data)
    with pytest.raises(DamagedJournal, match=r"batches up to \d+ were durable.*from the same backup"):
        await opened(twice)


@pytest.mark.parametrize("damage", [flip_in_first_frame, flip_in_header, cut])
async def test_a_start_that_is_refused_leaves_the_damaged_log_as_it_is(
    damage: Callable[[Path], None], tmp_path: Path
) -> None:
    killed = Killed(tmp_path / "killed")
    await killed.make(tmp_path, checkpoints=3, filling=bytes(1000))
    log = killed.directory / LOG
    damage(log)
    before = log.read_bytes()
    for _ in range(2):
        with pytest.raises(DamagedJournal):
            await killed.check()
        assert log.read_bytes() == before
        assert not list(killed.directory.glob("*.aside"))


async def test_a_log_that_a_close_was_cut_off_with_is_taken_back(tmp_path: Path) -> None:
    killed = Killed(tmp_path / "killed")
    await killed.make(tmp_path, checkpoints=1)
    log = killed.directory / LOG
    log.rename(log.with_name(f"{LOG}.aside"))
    await killed.check()
    assert not list(killed.directory.glob("*.aside"))
