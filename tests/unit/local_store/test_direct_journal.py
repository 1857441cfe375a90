"""The journal that the kernel writes in the background: the contract of all drivers, on a real file system."""

import asyncio
import errno
import os
from pathlib import Path

import pytest
from tests.unit.local_store.stores import Listener, has_space, read_all

from pybroker.disk.direct_io import ALIGNMENT, DirectFile, DirectWriter, open_direct
from pybroker.disk.disk import Disk
from pybroker.local_store.journal.journal import Journal, JournalSetup
from pybroker.local_store.journal.journal_direct import DirectJournal, open_journal
from pybroker.local_store.journal.journal_thread import ThreadJournal
from pybroker.local_store.local_store import LocalStore
from pybroker.local_store.store_environment import StoreEnvironment
from pybroker.local_store.store_options import LocalStoreOptions


def direct_writer() -> DirectWriter:
    try:
        return DirectWriter()
    except OSError as error:
        pytest.skip(f"this system has no asynchronous direct IO: {error}")


def prepared(path: Path) -> DirectFile:
    path.write_bytes(b"." * (64 * ALIGNMENT))
    file = open_direct(path)
    if file is None:
        pytest.skip("this file system has no direct IO")
    return file


def wait(writer: DirectWriter) -> None:
    while not writer.finish():
        os.sched_yield()


async def test_pieces_are_written_one_after_the_other_and_filled_up_with_zeros(tmp_path: Path) -> None:
    writer = direct_writer()
    file = prepared(tmp_path / "f")
    writer.submit(file, (b"head", b"body" * 200), 2 * ALIGNMENT)
    assert writer.is_busy
    wait(writer)
    assert not writer.is_busy
    expected = (b"head" + b"body" * 200).ljust(2 * ALIGNMENT, b"\0")
    assert (tmp_path / "f").read_bytes() == b"." * 2 * ALIGNMENT + expected + b"." * 60 * ALIGNMENT
    writer.close()
    file.close()


async def test_a_batch_longer_than_the_buffer_makes_it_longer(tmp_path: Path) -> None:
    writer = direct_writer()
    path = tmp_path / "f"
    path.write_bytes(bytes(3 << 20))
    file = open_direct(path)
    assert file is not None
    data = os.urandom((2 << 20) + 7)
    writer.submit(file, (data,), 0)
    wait(writer)
    assert path.read_bytes()[: len(data)] == data
    writer.close()
    file.close()


@pytest.mark.parametrize("is_ring_shared", [True, False])
async def test_each_of_many_writes_completes_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_ring_shared: bool
) -> None:
    if not is_ring_shared:
        monkeypatch.setattr("pybroker.disk.direct_io._CompletionRing._MAGIC_NUMBER", 0)
    writer = direct_writer()
    file = prepared(tmp_path / "f")
    for number in range(600):  # more than the ring of completions has
        writer.submit(file, (b"%d" % number,), number % 64 * ALIGNMENT)
        wait(writer)
        assert not writer.finish()
    data = (tmp_path / "f").read_bytes()
    found = [int(data[offset : offset + ALIGNMENT].rstrip(b"\0")) for offset in range(0, len(data), ALIGNMENT)]
    assert found == [*range(576, 600), *range(536, 576)]
    writer.close()
    file.close()


async def test_error_of_a_submitted_write_is_raised_by_finish(tmp_path: Path) -> None:
    writer = direct_writer()
    file = prepared(tmp_path / "f")
    writer.submit(file, (b"x",), 1 << 60)
    with pytest.raises(OSError, match="File too large"):
        wait(writer)
    assert not writer.is_busy
    writer.submit(file, (b"y",), 0)
    wait(writer)
    writer.close()
    file.close()


async def test_a_write_that_cannot_be_is_an_error(tmp_path: Path) -> None:
    writer = direct_writer()
    file = prepared(tmp_path / "f")
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        writer.submit(file, (b"x",), 0)
    assert not writer.is_busy
    writer.close()


class FailingWriter(DirectWriter):
    """The given number of writes reach the device and fail all the same."""

    def __init__(self, number: int, times: int) -> None:
        super().__init__()
        self._number = number
        self._left = times

    def finish(self) -> bool:
        is_done = super().finish()
        if is_done and self._left:
            self._left -= 1
            raise OSError(self._number, os.strerror(self._number))
        return is_done


class FailingDisk(Disk):
    """The real file system, with a `FailingWriter` after a call of `fails`."""

    def __init__(self) -> None:
        self.writer: FailingWriter

    def direct_writer(self) -> DirectWriter:
        self.writer = FailingWriter(0, 0)
        return self.writer

    def fails(self, number: int, times: int) -> None:
        self.writer._number, self.writer._left = number, times


@pytest.mark.parametrize(("direct_io", "kind"), [(True, DirectJournal), (False, ThreadJournal)])
async def test_what_was_completed_is_there_after_opening_again(
    tmp_path: Path, direct_io: bool, kind: type[Journal]
) -> None:
    direct_writer().close()
    options = LocalStoreOptions(direct_io=direct_io, journal_file_bytes=1 << 20)
    made: list[Journal] = []

    def make_journal(setup: JournalSetup) -> Journal:
        made.append(open_journal(setup))
        return made[0]

    store = await LocalStore.open(tmp_path, options, _never, make_journal=make_journal)
    assert type(made[0]) is kind
    listener = Listener()
    ledger_id = await store.create_ledger()
    wanted = [os.urandom(5000) for _ in range(400)]  # more than one journal file
    for index, payload in enumerate(wanted):
        listener.append(store, ledger_id, index, [payload])
        if index % 37 == 0:
            await asyncio.sleep(0)
    await listener.settled()
    assert listener.errors == []
    positions = [run.first_entry_id for runs, _ in listener.calls for run in runs]
    assert positions == list(range(400))
    await store.close()
    again = await LocalStore.open(tmp_path, options, _never)
    await again.recover(ledger_id)
    assert await read_all(again, ledger_id) == wanted
    await again.close()


async def test_no_room_refuses_one_batch_and_later_ones_go_on(tmp_path: Path) -> None:
    direct_writer().close()
    disk = FailingDisk()
    options = LocalStoreOptions(space_poll_s=0.001)
    store = await LocalStore.open(tmp_path, options, _never, StoreEnvironment(disk))
    listener = Listener()
    refused, other = await store.create_ledger(), await store.create_ledger()
    disk.fails(errno.ENOSPC, times=1)
    listener.append(store, refused, 0, [b"lost"])
    await listener.settled()
    assert len(listener.errors) == 1
    await has_space(store)
    listener.append(store, refused, 1, [b"fenced"])
    listener.append(store, other, 0, [b"kept"])
    await listener.settled()
    assert len(listener.errors) == 2
    await store.seal(refused)
    await store.close()
    again = await LocalStore.open(tmp_path, LocalStoreOptions(), _never)
    assert (await again.recover(refused)).entry_count == 0
    await again.recover(other)
    assert await read_all(again, other) == [b"kept"]
    await again.close()


async def test_any_other_failure_is_fatal_and_nothing_is_completed_after_it(tmp_path: Path) -> None:
    direct_writer().close()
    failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    disk = FailingDisk()
    store = await LocalStore.open(tmp_path, LocalStoreOptions(), failed.set_result, StoreEnvironment(disk))
    listener = Listener()
    ledger_id = await store.create_ledger()
    disk.fails(errno.EIO, times=1)
    listener.append(store, ledger_id, 0, [b"x"])
    assert isinstance(await failed, OSError)
    assert listener.calls == []
    await store.close()


def _never(error: BaseException) -> None:
    raise AssertionError("fatal") from error
