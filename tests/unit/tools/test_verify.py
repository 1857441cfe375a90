"""`ledger verify` finds every flipped bit that matters, calls nothing else damaged, and changes nothing."""

import re
import shutil
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.tools import stored_data
from tests.unit.tools.stored_data import content, damages, file_bytes, flipped, verify

from pybroker.cli import main
from pybroker.cli.command_table import COMMANDS
from pybroker.local_store.data_directory import DataDirectoryLock
from pybroker.local_store.journal.journal_recovery import scan_file
from pybroker.managed_ledger.ledger_list import LedgerList
from pybroker.storage_format.journal_layout import FILE_HEADER_BYTES, FileHeader, encode_file_header

FRAME_BYTES = 24 + 4096


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return stored_data.make(tmp_path_factory.mktemp("data"))


Items = list[dict[str, object]]


@pytest.fixture(scope="module")
def sound(directories: tuple[Path, Path]) -> tuple[Items, Items]:
    """What both hold."""
    return content(directories[0]), content(directories[1])


@pytest.fixture
def stopped(directories: tuple[Path, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(directories[0], tmp_path / "stopped"))


@pytest.fixture
def killed(directories: tuple[Path, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(directories[1], tmp_path / "killed"))


@pytest.mark.parametrize("command", ["verify", "dump"])
@pytest.mark.parametrize("which", ["stopped", "killed"])
def test_sound_data_is_called_sound_and_nothing_is_changed(
    which: str, command: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    directory: Path = request.getfixturevalue(which)
    before = file_bytes(directory)
    assert main(["ledger", command, str(directory)]) == 0
    assert file_bytes(directory) == before
    output = capsys.readouterr().out
    assert "damage:" not in output
    if command == "verify":
        assert "no damage" in output
        # 6 ledgers were made in two runs of two topics; what an empty one holds is not worth a file.
        assert "2 cursors" in output


def sample_offset(data: st.DataObject, path: Path, end: int | None = None) -> int:
    return data.draw(st.integers(0, (path.stat().st_size if end is None else end) - 1), label=f"offset in {path.name}")


def check_flip(directory: Path, path: Path, offset: int, bit: int, sound: Items) -> None:
    """A flip is found, or it changes nothing that anybody can read."""
    with flipped(path, offset, bit):
        if not damages(directory):
            assert content(directory) == sound


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("kind", ["ledgers/*.ledger", "checkpoint.db"])
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_a_flipped_bit_in_segments_and_table_is_found(
    directories: tuple[Path, Path], sound: tuple[Items, Items], which: int, kind: str, data: st.DataObject
) -> None:
    directory = directories[which]
    path = data.draw(st.sampled_from(sorted(directory.glob(kind))))
    offset, bit = sample_offset(data, path), data.draw(st.integers(0, 7))
    check_flip(directory, path, offset, bit, sound[which])


@pytest.fixture(scope="module")
def live_journal(directories: tuple[Path, Path], sound: tuple[Items, Items]) -> tuple[Path, int, int]:
    """The journal file that a start would replay, where its batches start to count and where the last one is."""
    sequence = next(item["sequence"] for item in sound[1] if item["kind"] == "store")
    for path in sorted((directories[1] / "journal").glob("0*.journal")):
        scanned = scan_file(path.read_bytes(), int(path.stem))
        live = [batch for batch in scanned.batches if batch.sequence >= sequence]  # type: ignore[operator]
        if live:
            return path, live[0].body_offset - 36, live[-1].body_offset - 36
    raise AssertionError("nothing is live")


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_a_flipped_bit_in_the_live_journal_is_found(
    directories: tuple[Path, Path],
    sound: tuple[Items, Items],
    live_journal: tuple[Path, int, int],
    data: st.DataObject,
) -> None:
    path, first, last = live_journal
    offset = data.draw(st.one_of(st.integers(0, 63), st.integers(first, last - 1)))
    check_flip(directories[1], path, offset, data.draw(st.integers(0, 7)), sound[1])


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_a_flipped_bit_in_the_log_of_the_table_is_found(
    directories: tuple[Path, Path], sound: tuple[Items, Items], data: st.DataObject
) -> None:
    path = directories[1] / "checkpoint.db-wal"
    offset = sample_offset(data, path, path.stat().st_size - FRAME_BYTES)
    check_flip(directories[1], path, offset, data.draw(st.integers(0, 7)), sound[1])


def test_damage_is_told_by_file_offset_and_position(stopped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = max(stopped.glob("ledgers/*.ledger"), key=lambda path: path.stat().st_size)
    payload_offset = path.read_bytes().index(stored_data.message(5, 2300)[-2300:])
    with flipped(path, payload_offset + 10):
        assert main(["ledger", "verify", str(stopped)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    ledger_id = int(path.stem)
    assert lines[0].startswith(f"damage: {path.name} at offset ")
    assert lines[0].endswith(f"position {ledger_id}:5: wrong checksum of the payload")
    assert lines[1].endswith("1 damaged places")


def test_a_receipted_batch_at_the_end_of_the_journal_is_damage_and_a_torn_one_is_not(
    killed: Path, live_journal: tuple[Path, int, int]
) -> None:
    path = killed / "journal" / live_journal[0].name
    with flipped(path, live_journal[2] + 40):
        (finding,) = damages(killed)
        assert (finding.file, finding.offset) == (path.name, live_journal[2])
        assert "is missing or incomplete" in finding.reason
        for directory in (killed / "journal", killed):
            (directory / "journal.end").unlink()  # without it nobody knows that it was receipted
        (finding,) = verify(killed)
        assert (finding.file, finding.offset, finding.is_damage) == (path.name, live_journal[2], False)
        assert "a start removes" in finding.reason


def test_a_missing_or_shorter_journal_file_is_damage(killed: Path, live_journal: tuple[Path, int, int]) -> None:
    path = killed / "journal" / live_journal[0].name
    data = path.read_bytes()
    path.write_bytes(data[: live_journal[2] + 100])
    (finding,) = damages(killed)
    assert (finding.file, finding.offset) == (path.name, live_journal[2])
    path.write_bytes(data[: live_journal[1]])
    (finding,) = damages(killed)
    assert (finding.file, finding.offset) == (path.name, live_journal[1])
    later = path.with_name(f"{int(path.stem) + 1:020d}.journal")
    later.write_bytes(encode_file_header(FileHeader(int(later.stem), salt=7)).ljust(1 << 20, b"\0"))
    path.unlink()
    found = damages(killed)
    assert (found[0].file, found[0].offset) == (path.name, None)
    assert "is missing" in found[0].reason
    later.unlink()
    found = damages(killed)
    assert (found[0].file, found[0].offset) == ("journal", None)
    assert "contains no file of the last run" in found[0].reason


def test_a_missing_segment_is_damage(stopped: Path, killed: Path) -> None:
    for directory in (stopped, killed):
        path = max(directory.glob("ledgers/*.ledger"), key=lambda path: path.stat().st_size)
        path.unlink()
        found = damages(directory)
        assert found
        assert all("is missing" in finding.reason for finding in found)
        assert all(str(int(path.stem)) in finding.line() for finding in found)


@pytest.mark.parametrize("loss", ["missing", "empty", "without facts", "without one fact"])
def test_lost_facts_are_damage_and_the_rest_is_still_looked_at(
    stopped: Path, loss: str, capsys: pytest.CaptureFixture[str]
) -> None:
    table = stopped / "checkpoint.db"
    if loss == "missing":
        table.unlink()
    elif loss == "empty":
        table.write_bytes(b"")
    else:
        connection = sqlite3.connect(table)
        connection.execute("DELETE FROM facts" + (" WHERE name = 'sequence'" if loss == "without one fact" else ""))
        connection.commit()
        connection.close()
    before = file_bytes(stopped)
    assert main(["ledger", "verify", str(stopped)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("damage: checkpoint.db: ")
    assert "segment files" in lines[0] or loss == "empty"
    assert "ledgers, 0 entries" not in lines[-1]
    assert main(["ledger", "dump", str(stopped)]) == 0
    assert "damage: checkpoint.db" in capsys.readouterr().out
    assert file_bytes(stopped) == before


def test_entries_of_a_segment_that_nobody_knows_are_damage(killed: Path) -> None:
    """Another ledger's blocks behind the end of an open one."""
    state = {int(item["ledger"]): item for item in content(killed) if item["kind"] == "ledger"}
    ledger_id, other_id = sorted(ledger_id for ledger_id, item in state.items() if item["state"] == "open")[:2]
    path, other = (killed / "ledgers" / f"{number:020d}.ledger" for number in (ledger_id, other_id))
    with path.open("ab") as file:
        file.write(other.read_bytes()[32:])
    (finding,) = damages(killed)
    assert (finding.file, finding.positions) == (path.name, f"ledger {ledger_id}")
    assert f"entry {other_id}:0 exists, but is neither in checkpoint.db nor in the journal" in finding.reason


def test_a_shorter_segment_is_damage(stopped: Path) -> None:
    path = max(stopped.glob("ledgers/*.ledger"), key=lambda path: path.stat().st_size)
    path.write_bytes(path.read_bytes()[:5000])
    assert damages(stopped)


def test_a_ledger_that_no_topic_names_is_a_note(stopped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store_only = stopped / "metadata.db"
    for path in (store_only, stopped / "metadata.db-wal"):
        path.unlink(missing_ok=True)
    (finding,) = verify(stopped)
    assert finding.line().startswith("damage: metadata.db: is missing, although there are ledgers with entries")
    other = stopped.parent / "other"
    stored_data.make(other)
    shutil.copy(other / "stopped" / "metadata.db", store_only)
    path = max(stopped.glob("ledgers/*.ledger"))
    shutil.copy(path, path.with_name(f"{900:020d}.ledger"))
    notes = [finding for finding in verify(stopped) if not finding.is_damage]
    assert [finding.file for finding in notes] == [f"{900:020d}.ledger"]


def test_a_directory_in_use_is_refused_in_one_line(stopped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = DataDirectoryLock(stopped)
    assert main(["ledger", "verify", str(stopped)]) == 2
    lock.release()
    error = capsys.readouterr().err
    assert "in use by process" in error
    assert error.count("\n") == 1
    assert "--data" not in error  # which it does not take
    (suggested,) = re.findall(r"`pybroker (\w+)`", error)
    assert suggested in COMMANDS


@pytest.mark.parametrize("command", ["verify", "dump"])
def test_what_is_no_data_directory_is_refused_and_not_made(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ledger", command, str(tmp_path / "nothing")]) == 2
    assert main(["ledger", command, str(tmp_path)]) == 2
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err.count("is not a data directory") == 2


def test_a_journal_header_is_checked(killed: Path, live_journal: tuple[Path, int, int]) -> None:
    path = killed / "journal" / live_journal[0].name
    with flipped(path, 20):
        assert any(finding.file == path.name and finding.offset == 0 for finding in damages(killed))
    assert live_journal[1] >= FILE_HEADER_BYTES


@pytest.mark.parametrize("command", ["verify", "repair"])
def test_each_list_of_ledgers_is_decoded_once(killed: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[bytes] = []
    decode = LedgerList.decode

    def counting(data: bytes, now_ms: int) -> LedgerList:
        decoded.append(data)
        return decode(data, now_ms)

    monkeypatch.setattr(LedgerList, "decode", counting)
    assert main(["ledger", command, str(killed)]) == 0
    assert len(decoded) == len(stored_data.TOPICS)


def test_a_mark_that_cannot_be_read_is_damage_and_one_that_was_never_written_is_not(killed: Path) -> None:
    mark = killed / "metadata.end"
    mark.write_bytes(bytes(4096))
    assert damages(killed) == []
    for data in (b"\1" + bytes(4095), b"PYBMETA1" + bytes(4088), b"PYB"):
        mark.write_bytes(data)
        (finding,) = damages(killed)
        assert finding.line() == (
            "damage: metadata.end: damaged: it is unknown whether the last changes of metadata.db exist"
        )


def test_a_refusal_names_the_directory_and_not_the_copy(killed: Path) -> None:
    (killed / "metadata.db").write_bytes(b"no database")
    (finding,) = damages(killed)
    assert str(killed / "metadata.db") in finding.reason
