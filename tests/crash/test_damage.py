"""Every file of a data directory, damaged in one place and in several: what a start and its readers may answer.

The right bytes, a refusal with a text, or a gap that is named. Not a wrong byte, an entry that is missing without a word, an
acknowledgement undone or invented, a ledger id given out twice, a due time or an entry of a compacted view that is another's, or
another exception. And `ledger verify` names whatever a start refuses or loses. Without a synced journal a start takes the first
place that does not hold for its end, as after a power cut: what was behind is gone, which is logged, and `verify` names it.

DAMAGE_CASES says how many, DAMAGE_SEED which; a failure tells the seed and the number of its case, which DAMAGE_ONLY runs alone.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.crash.stored_topics import (
    KILLED,
    OLDER,
    OPTIONS,
    STOPPED,
    UNSYNCED_OPTIONS,
    Found,
    Promised,
    look,
    promised_from,
)
from tests.support.data_directories import copy_data_directory

from pybroker.local_store.store_options import LocalStoreOptions
from pybroker.runtime import logs
from pybroker.tools.data_files import NotUsable, opened
from pybroker.tools.repair import LAST_RECORDS
from pybroker.tools.repair import main as repair
from pybroker.tools.repair_metadata import LAST_CHANGES
from pybroker.tools.verify import Verifier

CASES = int(os.environ.get("DAMAGE_CASES", "320"))
SEED = int(os.environ.get("DAMAGE_SEED", "1"))
ONLY = os.environ.get("DAMAGE_ONLY")
CHECKOUT = Path(__file__).parents[2]
KINDS = ("bit", "bit", "bit", "bit", "cut", "zeros", "swap", "deletion")
MEMORY = Path("/dev/shm")  # hundreds of starts, each of which syncs a dozen times
# Log lines that say that something is gone, and what it may be.
LOST_END = {"journal.tail_cut", "segment.entries_cut", "ledger.missing"}
END = r"has no entry|acknowledgements undone|due times lost"
OLDER_METADATA = {"orphaned_ledgers.kept", "metadata.mark_damaged"}
CHANGES = rf"{END}|is gone|is back|has the view|lost the subscription"
STATES = ((True, KILLED), (True, STOPPED), (False, KILLED), (False, STOPPED))
NO_CONTENT = ("LOCK", "space.reserve")  # nothing is read of them
LEDGER_DAMAGE = r"\.ledger|, ledger \d+ of "  # stays: readers are told
SHARED_MEMORY = "-shm"  # of SQLite, which makes it anew after a crash


@dataclass(frozen=True)
class Stored:
    """Directories below `root`, and what the process that was killed had been promised."""

    root: Path
    promised: dict[str, Promised]
    options: LocalStoreOptions

    def files(self, state: str) -> list[Path]:
        """All that hold something, below the directory in that state."""
        directory = self.root / state
        paths = (path for path in sorted(directory.rglob("*")) if path.is_file())
        return [
            path.relative_to(directory)
            for path in paths
            if path.name not in NO_CONTENT and not path.name.endswith(SHARED_MEMORY)
        ]

    def look(self, directory: Path) -> Found:
        return asyncio.run(look(directory, self.promised, self.options))


@dataclass(frozen=True)
class Case:
    """A copy of a directory that is damaged in so many places."""

    stored: Stored
    directory: Path
    what: str


Both = dict[bool, Stored]


@pytest.fixture(scope="module")
def both() -> Iterator[Both]:
    """By whether their journal is synced."""
    found = {is_synced: _stored(is_synced=is_synced) for is_synced in (True, False)}
    yield found
    for stored in found.values():
        shutil.rmtree(stored.root)


def _stored(*, is_synced: bool) -> Stored:
    root = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(CHECKOUT / "src"), str(CHECKOUT)))}
    command = [sys.executable, "-m", "tests.crash.stored_topics", str(root), "synced" if is_synced else "unsynced"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.kill()
    made = Stored(root, promised_from(line), OPTIONS if is_synced else UNSYNCED_OPTIONS)
    copy_data_directory(root / KILLED, root / STOPPED)
    undamaged = made.look(root / STOPPED)
    assert undamaged.kind == "right", undamaged
    return made


def make_case(both: Both, number: int, places: int, name: str) -> Case:
    """The case with that number; which one it is depends on DAMAGE_SEED, `number` and `places` alone."""
    is_synced, state = STATES[number % len(STATES)]
    stored = both[is_synced]
    directory = copy_data_directory(stored.root / state, stored.root / name)
    randomness = random.Random(f"{SEED}-{number}" if places == 1 else f"{SEED}-{places}-{number}")
    done = [damage(stored, state, directory, randomness) for _ in range(places)]
    journal = "synced" if is_synced else "not synced"
    return Case(stored, directory, f"{state}, {journal}: {'; '.join(done)}")


def kind_of(path: Path) -> str:
    """What of its kind there may be several of."""
    return path.suffix or path.name


def damage(stored: Stored, state: str, directory: Path, randomness: random.Random) -> str:
    """Damage one file in one place; what was done. Each kind of file is as likely as the others, however many there are."""
    files = [path for path in stored.files(state) if (directory / path).exists()]
    kind = randomness.choice(sorted({kind_of(path) for path in files}))
    name = randomness.choice([path for path in files if kind_of(path) == kind])
    path = directory / name
    data = path.read_bytes()
    what = randomness.choice(KINDS)
    offset = _place(data, randomness)
    if what == "bit":
        bit = randomness.randrange(8)
        path.write_bytes(data[:offset] + bytes((data[offset] ^ 1 << bit,)) + data[offset + 1 :])
        return f"{name}: bit {bit} of byte {offset}"
    if what == "zeros":
        count = min(randomness.choice((1, 512, 4096)), len(data) - offset)
        path.write_bytes(data[:offset] + bytes(count) + data[offset + count :])
        return f"{name}: {count} zeros at {offset}"
    if what == "cut":
        path.write_bytes(data[:offset])
        return f"{name}: cut at {offset} of {len(data)}"
    if what == "swap":
        others = [stored.root / state / other for other in files if kind_of(other) == kind and other != name]
        others += [older] if (older := stored.root / OLDER / name).exists() else []
        if others:
            other = randomness.choice(others)
            path.write_bytes(other.read_bytes())
            return f"{name}: in its place {other.relative_to(stored.root)}"
    path.unlink()
    return f"{name}: deleted"


def _place(data: bytes, randomness: random.Random) -> int:
    """An offset; mostly one where something stands, as much of a journal is zeros."""
    if randomness.random() < 0.7:
        end = len(data.rstrip(b"\0"))
        if end:
            return randomness.randrange(end)
    return randomness.randrange(max(1, len(data)))


def verify(directory: Path) -> list[str]:
    """Every damage that `ledger verify` names."""
    found: list[str] = []
    try:
        with opened(directory) as files:
            Verifier(files, lambda finding: found.append(finding.line()) if finding.is_damage else None, _idle).run()
    except NotUsable as error:
        found.append(str(error))
    return found


def _idle(_done_bytes: int, _total_bytes: int) -> None:
    """Nobody looks."""


def not_told(wrong: list[str], lost: list[str]) -> list[str]:
    """What is wrong after a repair and is not in what it said to be lost, by topic and position."""
    return [fault for fault in wrong if not any(_is_about(line, fault) for line in lost)]


def _is_about(line: str, fault: str) -> bool:
    if gone := re.fullmatch(r"topic (\w+) is gone", fault):
        return any(
            text in line for text in (f"/{gone[1]}: the list of ledgers", "with unknown paths", "lost: metadata value ")
        )
    if fault == "the deleted topic is back" or "has the view" in fault:
        return LAST_CHANGES in line
    if LAST_RECORDS in line and re.search(END, fault):
        return True
    if "due times lost" in fault:
        return True  # the entries are read again
    if undone := re.fullmatch(r"(\w+), ('.*'): \d+ acknowledgements undone.*", fault):
        return f"/{undone[1]}, {undone[2]}: " in line
    if missing := re.fullmatch(r"(\w+) has no entry \((\d+), (\d+)\)", fault):
        ledger_id, entry_id = int(missing[2]), int(missing[3])
        behind = re.search(rf"/{missing[1]}, perhaps all entries after ledger (\d+),", line)
        if behind and ledger_id > int(behind[1]):
            return True
        for first, last in re.findall(
            rf"position(?:s)?(?: from)? {ledger_id}:(\d+)(?: to {ledger_id}:(\d+)| on)?", line
        ):
            if int(first) <= entry_id and (not last or entry_id <= int(last)):
                return True
    return False


def unnamed(found: Found, named: list[str]) -> list[str]:
    """What a start refuses or loses and `verify` does not name."""
    if found.kind == "right" or (named and found.kind != "gap"):
        return []
    ledger_ids = set() if found.has_told_gap else found.missing_ledgers | {ledger_id for ledger_id, _ in found.gaps}
    if found.kind != "gap":
        return [f"verify finds nothing: {found}"]
    marks = {ledger_id: (f"{ledger_id:020d}", f" {ledger_id}:", f"ledger {ledger_id}") for ledger_id in ledger_ids}
    return [
        f"verify does not name ledger {ledger_id} in {named}"
        for ledger_id in ledger_ids
        if not any(mark in line for line in named for mark in marks[ledger_id])
    ]


def examine(case: Case, *, looks_twice: bool) -> tuple[str, list[str]]:
    """The outcome in a word, and what is wrong with it."""
    named = verify(case.directory)
    with pytest.MonkeyPatch.context() as patch:
        events: set[str] = set()
        for level in (logs.warning, logs.error):
            patch.setattr(logs, level.__name__, partial(_hear, events, level))
        found = case.stored.look(case.directory)
    forgivable = forgivable_losses(events, named, is_synced=case.stored.options.sync_data)
    forgive(found, forgivable)
    wrong = found.wrong + unnamed(found, named)
    if found.kind in ("right", "gap") and looks_twice:
        again = case.stored.look(case.directory)
        forgive(again, forgivable)
        if (again.kind, sorted(again.gaps)) != (found.kind, sorted(found.gaps)):
            wrong.append(f"the next start is not as the first one: {again}")
    return found.kind, wrong


def _hear(events: set[str], log: Callable[..., None], event: str, **fields: Any) -> None:
    events.add(event)
    log(event, **fields)


def forgivable_losses(events: set[str], named: list[str], *, is_synced: bool) -> str:
    """What may be gone, as a pattern: it was logged, and `verify` names why."""
    if named and events & OLDER_METADATA:
        return CHANGES
    if named and "journal.end_file_damaged" in events:
        return END
    return END if named and events & LOST_END and not is_synced else "nothing"


def forgive(found: Found, pattern: str) -> None:
    """A gap that is told."""
    wrong = [fault for fault in found.wrong if not re.search(pattern, fault)]
    found.has_told_gap = wrong != found.wrong
    found.wrong = wrong


def run_cases(both: Both, places: int, count: int) -> Counter[str]:
    """Every case's outcome. Fails with all that is wrong."""
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    for number in range(count) if ONLY is None else (int(ONLY),):
        case = make_case(both, number, places, "damaged")
        try:
            kind, faults = examine(case, looks_twice=number % 16 < len(STATES))
        except Exception as error:
            if ONLY is not None:
                raise
            kind, faults = "exception", [repr(error)]
        finally:
            shutil.rmtree(case.directory)
        outcomes[kind] += 1
        wrong += [
            f"DAMAGE_SEED={SEED} DAMAGE_ONLY={number} with {places}: {case.what}: {fault}" for fault in faults[:3]
        ]
    assert not wrong, "\n".join(wrong)
    return outcomes


@pytest.mark.long
def test_damage_costs_what_is_named_and_nothing_else(both: Both) -> None:
    outcomes = run_cases(both, 1, CASES)
    if ONLY is None:
        assert all(outcomes[kind] for kind in ("right", "gap", "start refused")), outcomes  # all of it was tried


@pytest.mark.long
@pytest.mark.parametrize("places", [2, 3])
def test_damage_in_several_places_costs_what_is_named_and_nothing_else(both: Both, places: int) -> None:
    run_cases(both, places, CASES // 4)


@pytest.mark.long
@pytest.mark.parametrize("places", [1, 2, 3])
def test_a_repaired_directory_serves_all_that_was_not_damaged(
    both: Both, places: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever the damage, a repair leaves what a start takes, and what is missing then is in what it said to be lost."""
    wrong: list[str] = []
    repaired = 0
    for number in range(CASES // 6) if ONLY is None else (int(ONLY),):
        case = make_case(both, number, places, "repaired")
        directory = case.directory
        before = verify(directory)
        capsys.readouterr()
        code = repair(directory, applies=True, accepts_loss=True)
        printed = capsys.readouterr()
        said = printed.out.splitlines()
        lost = [line for line in said if line.startswith("lost: ")]
        named = verify(directory)
        found = case.stored.look(directory)
        faults = not_told(found.wrong, lost) + [line for line in named if not re.search(LEDGER_DAMAGE, line)]
        # A segment that looks like one of a newer version is refused with a text, and a start needs no repair then.
        if found.refused or found.refused_topics or (code and not printed.err):
            faults.append(f"{said} {printed.err} {found}")
        if not before and found.kind != "right":
            faults.append(f"nothing was damaged, and now: {found}")
        wrong += [
            f"DAMAGE_SEED={SEED} DAMAGE_ONLY={number} with {places}: {case.what}: {fault}" for fault in faults[:3]
        ]
        repaired += bool(list(directory.glob("taken-away-*")))
        shutil.rmtree(directory)
    assert not wrong, "\n".join(wrong)
    assert repaired or ONLY is not None
