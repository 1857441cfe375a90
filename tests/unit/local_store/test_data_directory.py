"""A data directory belongs to one process at a time, and to none after a crash."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import pybroker
from pybroker.local_store.data_directory import LOCK_FILE_NAME, DataDirectoryInUse, DataDirectoryLock, ForeignDirectory

HOLDER = """
import sys
from pathlib import Path
from pybroker.local_store.data_directory import DataDirectoryLock
lock = DataDirectoryLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def start_holder(directory: Path) -> "subprocess.Popen[str]":
    """Start another process that holds the directory until its input ends."""
    source = str(Path(pybroker.__file__).resolve().parents[1])
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": source},
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def test_the_directory_is_made_and_names_its_holder(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "data"
    lock = DataDirectoryLock(directory)
    assert (directory / LOCK_FILE_NAME).read_text() == f"{os.getpid()}\n"
    lock.release()


def test_a_second_holder_is_told_who_has_it(tmp_path: Path) -> None:
    lock = DataDirectoryLock(tmp_path)
    with pytest.raises(DataDirectoryInUse, match=rf"in use by process {os.getpid()}\b.*--data"):
        DataDirectoryLock(tmp_path)
    lock.release()


def test_a_released_directory_can_be_held_again(tmp_path: Path) -> None:
    DataDirectoryLock(tmp_path).release()
    DataDirectoryLock(tmp_path).release()


def test_a_refusal_leaves_the_holder_in_place(tmp_path: Path) -> None:
    lock = DataDirectoryLock(tmp_path)
    for _ in range(3):
        with pytest.raises(DataDirectoryInUse):
            DataDirectoryLock(tmp_path)
    assert (tmp_path / LOCK_FILE_NAME).read_text() == f"{os.getpid()}\n"
    lock.release()


def test_a_longer_name_of_an_earlier_holder_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE_NAME).write_text("99999999999999999\n")
    lock = DataDirectoryLock(tmp_path)
    assert (tmp_path / LOCK_FILE_NAME).read_text() == f"{os.getpid()}\n"
    lock.release()


def test_a_process_that_is_killed_leaves_the_directory_free(tmp_path: Path) -> None:
    holder = start_holder(tmp_path)
    try:
        with pytest.raises(DataDirectoryInUse, match=str(holder.pid)):
            DataDirectoryLock(tmp_path)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate(timeout=30)
    DataDirectoryLock(tmp_path).release()


def test_the_lock_holds_when_its_file_is_removed_or_replaced(tmp_path: Path) -> None:
    holder = start_holder(tmp_path)
    try:
        (tmp_path / LOCK_FILE_NAME).unlink()
        for _ in range(2):  # the first try creates the file again
            with pytest.raises(DataDirectoryInUse, match="in use by process"):
                DataDirectoryLock(tmp_path)
        with pytest.raises(DataDirectoryInUse):
            DataDirectoryLock(tmp_path, is_only_looked_at=True)
    finally:
        holder.communicate(timeout=30)
    DataDirectoryLock(tmp_path).release()


def test_the_directory_is_its_owners_only(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    DataDirectoryLock(directory).release()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    (directory / "metadata.db").touch(0o644)
    (directory / "ledgers").mkdir(0o755)
    (directory / "link").symlink_to(tmp_path)
    DataDirectoryLock(directory).release()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir() if not path.is_symlink()}
    assert modes == {LOCK_FILE_NAME: 0o600, "metadata.db": 0o600, "ledgers": 0o700}


def test_looking_at_a_directory_changes_no_mode(tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE_NAME).touch(0o644)
    (tmp_path / "metadata.db").touch(0o644)
    DataDirectoryLock(tmp_path, is_only_looked_at=True).release()
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o644}


@pytest.mark.parametrize("name", ["notes.txt", ".bashrc"])
def test_directory_with_other_files_is_not_taken_and_not_changed(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch(0o644)
    for _ in range(2):
        with pytest.raises(
            ForeignDirectory,
            match=rf"{tmp_path} is not empty and is not a broker's data directory \(it contains {name}",
        ):
            DataDirectoryLock(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == [name]
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o644
    (tmp_path / LOCK_FILE_NAME).touch()  # as the text recommends
    DataDirectoryLock(tmp_path).release()


@pytest.mark.parametrize("name", ["lost+found", "ledgers", "checkpoint.db"])
def test_root_of_a_file_system_and_part_of_a_data_directory_are_taken(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir(0o700)
    DataDirectoryLock(tmp_path).release()
