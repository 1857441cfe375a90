"""`ledger dump` shows what is stored, wherever it is."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.tools import stored_data
from tests.unit.tools.stored_data import TOPICS, content, flipped, message

from pybroker.cli import main


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return stored_data.make(tmp_path_factory.mktemp("data"))


def entries_of(items: list[dict[str, Any]], topic: str) -> list[dict[str, Any]]:
    ledger_ids = {str(item["ledger"]) for item in items if item["kind"] == "ledger" and item["topic"] == topic}
    found = [item for item in items if item["kind"] == "entry" and item["position"].split(":")[0] in ledger_ids]
    return sorted(found, key=lambda item: [int(part) for part in item["position"].split(":")])


@pytest.mark.parametrize("which", [0, 1])
def test_every_entry_is_shown_from_segments_and_journal(directories: tuple[Path, Path], which: int) -> None:
    entries = entries_of(content(directories[which]), TOPICS[0])
    sizes = [300] * 160 + [500] * 10
    numbers = [*range(80), *range(90)]
    expected = [message(number, size).hex() for number, size in zip(numbers, sizes, strict=True)]
    assert [item["payload"] for item in entries] == expected
    assert {item["in"] for item in entries} == ({"segment"} if which == 0 else {"segment", "journal"})
    first = entries[0]
    assert (first["producer"], first["sequence_id"], first["publish_time"]) == ("a producer", 0, 1_000_000)
    assert (first["key"], first["messages"], first["size_bytes"]) == ("key-0", 1, len(message(0)))


@pytest.mark.parametrize("which", [0, 1])
def test_a_cursor_is_shown_as_a_start_would_find_it(directories: tuple[Path, Path], which: int) -> None:
    cursors = [item for item in content(directories[which]) if item["kind"] == "cursor"]
    assert [item["subscription"] for item in cursors] == ["a sub", "a sub"]
    for cursor in cursors:
        assert cursor["properties"] == {"who": "me"}
        assert cursor["backlog_entries"] == 170 - 2 * len(range(3, 40, 2)) - 2
        assert cursor["individually_deleted"].count("..") == 2 * len(range(3, 40, 2)) + 2


def test_lines_are_for_people_and_json_for_programs(
    directories: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ledger", "dump", str(directories[1])]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert main(["ledger", "dump", str(directories[1]), "--json"]) == 0
    items = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line.split(" ")[0] for line in lines] == [item["kind"] for item in items]
    assert any(line.startswith("entry position=") and 'producer="a producer"' in line for line in lines)
    assert not any("payload" in item for item in items)


def test_one_ledger_alone_can_be_shown(directories: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    wanted = next(item["ledger"] for item in content(directories[1]) if item["kind"] == "ledger" and item["entries"])
    assert main(["ledger", "dump", str(directories[1]), "--ledger", str(wanted), "--json", "--payloads"]) == 0
    items = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {item["kind"] for item in items} <= {"ledger", "entry"}
    assert {str(item.get("ledger", wanted)) for item in items} == {str(wanted)}
    assert all(item["payload"] for item in items if item["kind"] == "entry")


def test_what_is_damaged_is_named_and_the_rest_is_shown(directories: tuple[Path, Path]) -> None:
    sound = entries_of(content(directories[0]), TOPICS[1])
    path = max(directories[0].glob("ledgers/*.ledger"), key=lambda path: path.stat().st_size)
    offset = path.read_bytes().index(message(5, 2300)[-2300:])
    with flipped(path, offset):
        items = content(directories[0])
    assert len(entries_of(items, TOPICS[1])) == len(sound) - 1
    assert [item for item in items if item["kind"] == "damage"]
