"""`pybroker ledger repair`: shows first, keeps what it takes away, and leaves a directory that holds all that was whole."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from tests.unit.tools.stored_data import TOPICS, content, damages, file_bytes, make
from tests.upgrade.samples import unpack

from pybroker.cli import main
from pybroker.metadata.sqlite_table import LAYOUT_VERSION
from pybroker.tools.repair_metadata import write_metadata
from pybroker.tools.repair_plan import JournalRun, Piece, continue_ledger, lost_places


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, dict[str, bytes]]:
    """The directories as `make` leaves them, with their files."""
    return {directory: file_bytes(directory) for directory in make(tmp_path_factory.mktemp("made"))}


@pytest.fixture
def killed(made: dict[Path, dict[str, bytes]], tmp_path: Path) -> Path:
    files = next(files for directory, files in made.items() if directory.name == "killed")
    for name, data in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    return tmp_path


def payloads(directory: Path) -> list[str]:
    return sorted(str(item["payload"]) for item in content(directory) if "payload" in item)


def test_nothing_is_done_to_what_a_start_takes(killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = file_bytes(killed)
    assert main(["ledger", "repair", str(killed), "--apply"]) == 0
    assert capsys.readouterr().out == "nothing to repair: a broker can start with the directory\n"
    assert file_bytes(killed) == before


def test_it_shows_first_and_changes_nothing(killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (killed / "checkpoint.db").unlink()
    before = file_bytes(killed)
    assert main(["ledger", "repair", str(killed)]) == 1
    said = capsys.readouterr().out
    assert "checkpoint.db: is missing" in said
    assert "do: rewrite checkpoint.db" in said
    assert "nothing was changed" in said
    assert file_bytes(killed) == before


def test_facts_come_from_segments_and_journal_and_what_was_replaced_is_kept(
    killed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = file_bytes(killed)
    held = payloads(killed)
    assert held
    (killed / "checkpoint.db").unlink()
    assert main(["ledger", "repair", str(killed), "--apply"]) == 0
    said = capsys.readouterr().out
    for topic in TOPICS:
        assert f"lost: {topic}, 'a sub': perhaps the last acknowledgements" in said
    assert payloads(killed) == held
    assert damages(killed) == []
    (taken,) = killed.glob("taken-away-*")
    kept = file_bytes(taken)
    for name, data in before.items():
        if name.startswith("journal/"):
            assert kept[name] == data
    assert kept["checkpoint.db-wal"] == before["checkpoint.db-wal"]


def test_a_lost_metadata_file_takes_the_ledgers_away_and_names_the_topics(
    killed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (killed / "metadata.db").write_bytes(b"no database")
    (killed / "metadata.db-wal").unlink()
    ledgers = {path.name for path in killed.glob("ledgers/*")}
    assert main(["ledger", "repair", str(killed), "--apply"]) == 0
    said = capsys.readouterr().out
    for topic in TOPICS:
        assert f"lost: {topic}: the list of ledgers, and therefore the whole topic" in said
    assert {path.name for path in killed.glob("taken-away-*/ledgers/*")} == ledgers
    assert damages(killed) == []


def test_no_metadata_and_no_mark_is_told_as_well(killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in killed.glob("metadata.*"):
        path.unlink()
    assert main(["ledger", "repair", str(killed), "--apply"]) == 0
    said = capsys.readouterr().out
    assert "found: damage: metadata.db: is missing, although there are ledgers with entries" in said
    for topic in TOPICS:
        assert f"lost: {topic}: the list of ledgers, and therefore the whole topic" in said
    assert damages(killed) == []
    assert not list(killed.glob("ledgers/*"))


def test_a_layout_that_it_does_not_know_is_left_alone(killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    connection = sqlite3.connect(killed / "metadata.db")
    connection.execute("PRAGMA user_version = 9")
    connection.close()
    before = file_bytes(killed)
    assert main(["ledger", "repair", str(killed), "--apply"]) == 2
    assert "metadata.db has layout 9" in capsys.readouterr().err
    assert file_bytes(killed) == before


def test_entries_of_the_journal_continue_a_segment_and_leave_places_for_what_is_lost() -> None:
    runs = [JournalRun(7, [b"7", b"8"], (1, 2)), JournalRun(2, [b"2", b"3", b"4"], (1, 1, 3))]
    pieces = continue_ledger(3, runs)
    assert pieces == [
        Piece(3, 2, [b"3", b"4"], (1, 3)),
        Piece(5, 2, None, ()),
        Piece(7, 2, [b"7", b"8"], (1, 2)),
    ]
    assert lost_places({9: "a topic"}, {9: pieces}) == ["a topic, positions 9:5 to 9:6: no file contains these entries"]
    assert continue_ledger(9, runs) == []


def test_a_mark_that_cannot_be_read_goes_alone(killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (killed / "metadata.end").write_bytes(b"\1" * 4096)
    before = file_bytes(killed)
    assert main(["ledger", "repair", str(killed), "--apply"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[1:3] == [
        "do: move metadata.end away; the broker creates the file again when it starts",
        "lost: metadata.db: perhaps the last changes: created objects are lost, and deleted objects may exist again",
    ]
    after = {name: data for name, data in file_bytes(killed).items() if not name.startswith("taken-away")}
    assert before.pop("metadata.end") == file_bytes(next(killed.glob("taken-away-*")))["metadata.end"]
    assert after == before
    assert damages(killed) == []


def test_a_lost_mark_and_older_metadata_are_told_by_the_ledgers(
    killed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The document of one topic is older than the ledgers that it has had since, that of the other one is gone."""
    connection = sqlite3.connect(killed / "metadata.db", isolation_level=None)
    ((path, value),) = connection.execute("SELECT path, value FROM metadata WHERE path LIKE '%logs'").fetchall()
    document = json.loads(value)
    last = document["ledgers"]["ledgers"].pop()["id"]
    write_metadata(killed / "metadata.db.new", [(path, json.dumps(document).encode(), 3)])
    connection.close()
    for name in ("metadata.db", "metadata.db-wal", "metadata.db-shm", "metadata.end"):
        (killed / name).unlink(missing_ok=True)
    (killed / "metadata.db.new").rename(killed / "metadata.db")
    assert len(damages(killed)) == 3
    assert main(["ledger", "repair", str(killed), "--apply"]) == 0
    said = capsys.readouterr().out
    assert "lost: metadata.db: perhaps the last changes" in said
    assert f"lost: no topic, positions {last}:0 to {last}:89: their topic is unknown" in said
    assert f"lost: {TOPICS[0]}: the list of ledgers, and therefore the whole topic" in said
    assert f"lost: {path}, perhaps all entries after ledger " in said
    assert damages(killed) == []


def test_repaired_metadata_of_an_earlier_layout_have_the_current_paths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    unpack("05-backup", "stopped", data)
    connection = sqlite3.connect(data / "metadata.db", isolation_level=None)
    connection.execute("UPDATE metadata SET value = x'7b7d' WHERE path = '/admin/policies/sample/kept'")
    connection.close()
    assert main(["ledger", "repair", str(data), "--apply", "--accept-loss"]) == 0
    assert "lost: metadata value '/admin/policies/sample/kept'" in capsys.readouterr().out
    connection = sqlite3.connect(data / "metadata.db", isolation_level=None)
    assert connection.execute("PRAGMA user_version").fetchone() == (LAYOUT_VERSION,)
    paths = {path for (path,) in connection.execute("SELECT path FROM metadata")}
    connection.close()
    assert {
        "/admin/policies/public",
        "/admin/policies/sample",
        "/pybroker/topic-policies/public/default/persistent/once",
    } <= paths
    assert not any(path.startswith(("/admin/tenants", "/admin/topic-policies")) for path in paths)
    assert damages(data) == []
