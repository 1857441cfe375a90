"""Transactions, cursors and delayed messages after damage anywhere and a repair: what the repair does not name is as it was.

The files of a directory that a killed broker left are damaged in one place or in several: flipped bits, zeros, cut files, pages of
rubbish. After `ledger repair --apply` a start must take the directory, messages must be there and visible as their transactions
ended, acknowledgements must count, and no transaction may be open that no coordinator will end. Exceptions are those that the
repair, or `ledger verify` after it, named: by topic and position, by cursor and position, or by transaction.

REPAIR_CASES says how many of the random ones, REPAIR_SEED which; a failure tells the seed and number of its case, which
REPAIR_ONLY runs alone.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pulsar
import pytest
from tests.clients.conftest import new_client
from tests.crash.stored_transactions import (
    IN,
    KILLED,
    OUT,
    RECOVERED,
    ROOT,
    SETTINGS,
    SIDE,
    SUBSCRIPTION,
    Fate,
    Place,
    Promised,
    Wrong,
    look,
    make,
)
from tests.crash.test_damage import MEMORY, kind_of, verify
from tests.support.broker_process import BrokerProcess
from tests.support.data_directories import copy_data_directory
from tests.support.rest import call

from pybroker.managed_ledger.info.managed_ledger_info import TRANSACTIONS_CURSOR
from pybroker.tools.repair import LAST_RECORDS
from pybroker.tools.repair import main as repair
from pybroker.tools.repair_metadata import LAST_CHANGES

pytestmark = pytest.mark.long

CASES = int(os.environ.get("REPAIR_CASES", "12"))
SEED = int(os.environ.get("REPAIR_SEED", "1"))
ONLY = os.environ.get("REPAIR_ONLY")
DAMAGES = ("bit", "bit", "bit", "cut", "zeros", "page")
PAGE_BYTES = 4096
NO_CONTENT = ("LOCK", "space.reserve", "run.id")
SHARED_MEMORY = "-shm"


@dataclass(frozen=True)
class Made:
    """A directory, and what its clients were promised."""

    root: Path
    promised: Promised

    def copy(self, state: str, to: Path) -> Path:
        """A directory in that state that a test may damage."""
        return copy_data_directory(self.root / state, to)


@pytest.fixture(scope="module")
def made() -> Iterator[Made]:
    root = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
    yield Made(root, make(root))
    shutil.rmtree(root)


def damage(directory: Path, chance: random.Random) -> str:
    """Damage one file in one place; what was done. Each kind of file is as likely as the others."""
    files = [path for path in sorted(directory.rglob("*")) if path.is_file() and path.stat().st_size]
    files = [path for path in files if path.name not in NO_CONTENT and not path.name.endswith(SHARED_MEMORY)]
    kind = chance.choice(sorted({kind_of(path) for path in files}))
    path = chance.choice([path for path in files if kind_of(path) == kind])
    data = bytearray(path.read_bytes())
    offset = chance.randrange(max(1, len(data.rstrip(b"\0"))))
    what = chance.choice(DAMAGES)
    name = path.relative_to(directory)
    if what == "bit":
        bit = chance.randrange(8)
        data[offset] ^= 1 << bit
        path.write_bytes(data)
        return f"{name}: bit {bit} of byte {offset}"
    if what == "cut":
        path.write_bytes(data[:offset])
        return f"{name}: cut at {offset} of {len(data)}"
    if what == "zeros":
        count = min(512, len(data) - offset)
        data[offset : offset + count] = bytes(count)
    else:
        offset -= offset % PAGE_BYTES
        count = min(PAGE_BYTES, len(data) - offset)
        data[offset : offset + count] = chance.randbytes(count)
    path.write_bytes(data)
    return f"{name}: {count} bytes of {what} at {offset}"


def repaired(directory: Path, promised: Promised, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Repair the directory, and return what is wrong with it then and was not named."""
    capsys.readouterr()
    code = repair(directory, applies=True, accepts_loss=True)
    printed = capsys.readouterr()
    if code:
        return [f"the repair fails: {printed.err}"] if "version" not in printed.err else []
    named = [line for line in printed.out.splitlines() if line.startswith("lost: ")]
    named += verify(directory)
    wrong = asyncio.run(look(directory, promised))
    return [f"{fault} — named: {named}" for fault in wrong if not is_named(fault, promised, named)]


def is_named(fault: Wrong, promised: Promised, named: list[str]) -> bool:
    """Whether one of these lines says so."""
    return any(_names(line, fault, promised) for line in named)


def _names(line: str, fault: Wrong, promised: Promised) -> bool:
    path = f"{ROOT}{fault.topic}"
    if fault.place is None:
        if fault.text == "the topic is gone":
            return f"{path}: " in line or "with unknown paths" in line or f"metadata value '{path}'" in line
        return "has lost its subscription" in fault.text and LAST_CHANGES in line
    ledger_id, entry_id = fault.place
    if fault.is_ack:
        of_cursor = f"{path}, 's': "
        if of_cursor not in line:
            return _is_log_line(line, fault)
        if certain := re.search(r"entries up to (\d+):(-?\d+)", line):
            return (int(certain[1]), int(certain[2])) < fault.place
        if "delivery time" in fault.text:
            return "delivery times" in line
        return "perhaps all acknowledgements" in line or "some of its" in line or _covers(line, *fault.place)
    if "the list of ledgers" in line and f"{path}: " in line:
        return True
    if behind := re.search(rf"{path}, perhaps all entries after ledger (\d+),", line):
        return ledger_id > int(behind[1])
    if LAST_RECORDS in line and "is not there" in fault.text:
        return True
    if fault.txn is not None and _is_log_line(line, fault):
        return promised.sent[fault.topic][fault.place].fate is Fate.OPEN
    if fault.txn is not None and "not there" not in fault.text:
        return (
            re.search(rf"transaction {re.escape(str(fault.txn))}[ :]", line) is not None
            and path in line
            and _covers(line, ledger_id, entry_id)
        )
    return _covers(line, ledger_id, entry_id)


def _is_log_line(line: str, fault: Wrong) -> bool:
    return fault.txn is not None and f"__transaction_log_{fault.txn.most}: records" in line


def _covers(line: str, ledger_id: int, entry_id: int) -> bool:
    for first, last in re.findall(rf"\b{ledger_id}:(\d+)(?: to {ledger_id}:(\d+))?", line):
        end = last or (1 << 62 if f"from {ledger_id}:{first}" in line else first)
        if int(first) <= entry_id <= int(end):
            return True
    return re.search(rf"ledger {ledger_id} of .*is missing", line) is not None


def run_cases(made: Made, places: int, count: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Fails with all that is wrong."""
    wrong: list[str] = []
    for number in range(count) if ONLY is None else (int(ONLY),):
        state = (KILLED, RECOVERED)[number % 2]
        directory = made.copy(state, made.root / "damaged")
        chance = random.Random(f"{SEED}-{places}-{number}")
        done = "; ".join(damage(directory, chance) for _ in range(places))
        try:
            faults = repaired(directory, made.promised, capsys)
        except Exception as error:
            if ONLY is not None:
                raise
            faults = [repr(error)]
        shutil.rmtree(directory)
        wrong += [
            f"REPAIR_SEED={SEED} REPAIR_ONLY={number} with {places}: {state}: {done}: {fault}" for fault in faults[:3]
        ]
    assert not wrong, "\n".join(wrong)


def write_log_back(directory: Path, name: str) -> None:
    """Have all of a database in its file, without a log."""
    with closing(sqlite3.connect(directory / name)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def records_of(directory: Path, cursor: str) -> list[tuple[str, int, bytes]]:
    """The deltas of one cursor and of what is stored beside it."""
    with closing(sqlite3.connect(directory / "checkpoint.db")) as connection:
        rows = connection.execute("SELECT cursor_id, number, data FROM deltas ORDER BY cursor_id, number").fetchall()
    return [row for row in rows if f"/{cursor}#" in row[0]]


def flip_in_id(directory: Path, row: tuple[str, int, bytes]) -> None:
    """Flip the highest bit of the last byte of a row's cursor id: it is no text any more, and SQLite reads no further."""
    cursor_id, _, data = row
    path = directory / "checkpoint.db"
    content = bytearray(path.read_bytes())
    at = content.rindex(cursor_id.encode(), 0, content.index(data)) + len(cursor_id) - 1
    content[at] ^= 0x80
    path.write_bytes(content)


def test_one_flipped_bit_in_transaction_records_loses_no_message(
    made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    """Records of a topic's transactions behind the flipped bit are older than those of its cursor."""
    directory = made.copy(RECOVERED, made.root / "flipped")
    write_log_back(directory, "checkpoint.db")
    rows = records_of(directory, f"out/{TRANSACTIONS_CURSOR}")
    assert len([row for row in rows if row[0].endswith("/delayed")]) > 2
    flip_in_id(directory, rows[-2])
    assert repaired(directory, made.promised, capsys) == []
    assert asyncio.run(look(directory, made.promised)) == [], "the entries say what the records did"


def test_one_flipped_bit_in_acknowledgements_names_that_cursor_alone(
    made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = made.copy(RECOVERED, made.root / "flipped-acks")
    write_log_back(directory, "checkpoint.db")
    rows = records_of(directory, "in/s")
    flip_in_id(directory, rows[len(rows) // 2])
    assert repair(directory, applies=False) == 1
    lost = [line for line in capsys.readouterr().out.splitlines() if line.startswith("lost: ")]
    assert len(lost) == 1, lost
    assert f"{ROOT}in, 's': perhaps the last acknowledgements" in lost[0]
    assert "entries up to " in lost[0]
    assert " are certain; " in lost[0]
    assert repaired(directory, made.promised, capsys) == []


@pytest.mark.parametrize("part", [0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97])
def test_cut_metadata_log_delivers_no_aborted_message(
    made: Made, part: float, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = made.copy(KILLED, made.root / f"cut-{part}")
    log = directory / "metadata.db-wal"
    data = log.read_bytes()
    log.write_bytes(data[: int(len(data) * part)])
    assert repaired(directory, made.promised, capsys) == []


def test_damaged_page_of_the_table_keeps_the_rows_of_all_others(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    directory = made.copy(RECOVERED, made.root / "pages")
    write_log_back(directory, "checkpoint.db")
    content = (directory / "checkpoint.db").read_bytes()
    for page in range(1, len(content) // PAGE_BYTES):
        damaged = made.copy(RECOVERED, made.root / f"page-{page}")
        (damaged / "checkpoint.db-wal").unlink()
        start = page * PAGE_BYTES
        (damaged / "checkpoint.db").write_bytes(content[:start] + b"\x55" * PAGE_BYTES + content[start + PAGE_BYTES :])
        assert repaired(damaged, made.promised, capsys) == []


@pytest.mark.parametrize("places", [1, 2, 4])
def test_after_repair_everything_not_named_is_as_promised(
    made: Made, places: int, capsys: pytest.CaptureFixture[str]
) -> None:
    run_cases(made, places, CASES, capsys)


def lose_records_of_transactions(data: Path) -> None:
    write_log_back(data, "checkpoint.db")
    flip_in_id(data, records_of(data, f"out/{TRANSACTIONS_CURSOR}")[-2])


def lose_a_page_of_cursors(data: Path) -> None:
    write_log_back(data, "checkpoint.db")
    row = records_of(data, "in/s")[0]
    content = bytearray((data / "checkpoint.db").read_bytes())
    start = content.index(row[2]) // PAGE_BYTES * PAGE_BYTES
    content[start : start + PAGE_BYTES] = bytes(PAGE_BYTES)
    (data / "checkpoint.db").write_bytes(content)


def cut_the_metadata_log(data: Path) -> None:
    log = data / "metadata.db-wal"
    log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])


@pytest.mark.parametrize(
    "do", [lose_records_of_transactions, lose_a_page_of_cursors, cut_the_metadata_log], ids=lambda do: do.__name__
)
def test_official_client_gets_what_the_repair_did_not_name(
    made: Made, do: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Open transactions are aborted by an administrator, and then a reader and the subscription get what is theirs."""
    broker = BrokerProcess(tmp_path, SETTINGS)
    made.copy(KILLED if do is cut_the_metadata_log else RECOVERED, broker.data)
    do(broker.data)
    capsys.readouterr()
    assert repair(broker.data, applies=True) == 0
    named = [line for line in capsys.readouterr().out.splitlines() if line.startswith("lost: ")]
    assert verify(broker.data) == [] or do is cut_the_metadata_log
    promised, wrong = made.promised, []
    with broker.running():
        for txn in {sent.txn for sent in promised.sent[OUT].values() if sent.fate is Fate.OPEN and sent.txn}:
            answer = call(f"{broker.http_url}/admin/v3/transactions/abortTransaction/{txn.most}/{txn.least}", "POST")
            assert answer.status in (200, 202, 204, 404), answer
        client = new_client(broker.url)
        for topic in (IN, OUT, SIDE):
            visible = {
                place for place, sent in promised.sent[topic].items() if sent.fate in (Fate.PLAIN, Fate.COMMITTED)
            }
            wrong += differences(
                topic, read_by(client.create_reader(topic, pulsar.MessageId.earliest), visible), visible
            )
        left = promised.sent[IN].keys() - promised.acked[IN]
        consumer = client.subscribe(IN, SUBSCRIPTION, pulsar.ConsumerType.Shared)
        wrong += differences(IN, read_by(consumer, left), left, is_ack=True)
        client.close()
    assert [f"{fault} — named: {named}" for fault in wrong if not is_named(fault, promised, named)] == []


def read_by(source: pulsar.Reader | pulsar.Consumer, wanted: Iterable[Place]) -> set[Place]:
    """The positions of what comes: all that is wanted, and whatever else there is."""
    found: set[Place] = set()
    receive = source.read_next if isinstance(source, pulsar.Reader) else source.receive
    while True:
        try:
            message = receive(5_000 if set(wanted) - found else 300)
        except pulsar.Timeout:
            source.close()
            return found
        found.add((message.message_id().ledger_id(), message.message_id().entry_id()))


def differences(topic: str, found: set[Place], wanted: Iterable[Place], *, is_ack: bool = False) -> list[Wrong]:
    """What did not come, and what should not have come."""
    missing = [Wrong(topic, place, "is not there") for place in sorted(set(wanted) - found)]
    more = [Wrong(topic, place, "came and should not", is_ack=is_ack) for place in sorted(found - set(wanted))]
    return missing + more
