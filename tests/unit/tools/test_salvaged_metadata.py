"""Values of a damaged metadata.db: what can be read, and when that is all."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from pybroker.metadata.sqlite_metadata_store import SqliteMetadataStore
from pybroker.tools.salvaged_metadata import SalvagedMetadata

VALUES = 60
FLIPPED_BITS = 8


@pytest.fixture
async def files(tmp_path: Path) -> tuple[bytes, bytes, dict[str, bytes]]:
    """Database, log and values of a store whose process was killed."""
    path = tmp_path / "metadata.db"
    store = await SqliteMetadataStore.open(path, mark=tmp_path / "metadata.end")
    values = {}
    for number in range(VALUES):
        values[f"/values/{number:03}"] = b"first %d" % number * 20
        await store.put(f"/values/{number:03}", values[f"/values/{number:03}"], -1)
    for number in range(0, VALUES, 3):
        await store.delete(f"/values/{number:03}")
        del values[f"/values/{number:03}"]
    for number in range(1, VALUES, 3):
        values[f"/values/{number:03}"] = b"second %d" % number * 20
        await store.put(f"/values/{number:03}", values[f"/values/{number:03}"], 0)
    with closing(sqlite3.connect(path)) as reader:
        ((count,),) = reader.execute("SELECT count(*) FROM metadata").fetchall()
    assert count == len(values)
    found = path.read_bytes(), path.with_name("metadata.db-wal").read_bytes(), values
    await store.close()
    return found


async def test_undamaged_values_are_all_values(files: tuple[bytes, bytes, dict[str, bytes]]) -> None:
    data, log, values = files
    found = SalvagedMetadata(data, log).all_values(set())
    assert found is not None
    assert {path: value for path, value, _ in found.values()} == values


async def test_flipped_bits_in_the_log_give_no_value_that_was_not_stored_last(
    files: tuple[bytes, bytes, dict[str, bytes]],
) -> None:
    data, log, values = files
    chance, exact = random.Random(3), 0
    for _ in range(FLIPPED_BITS):
        damaged = bytearray(log)
        damaged[chance.randrange(len(log))] ^= 1 << chance.randrange(8)
        salvaged = SalvagedMetadata(data, bytes(damaged))
        found = salvaged.all_values(set(salvaged.older))
        if found is not None:
            assert {path: value for path, value, _ in found.values()} == values
            exact += 1
    assert exact > FLIPPED_BITS / 2


async def test_cut_log_is_not_taken_for_all_of_it(files: tuple[bytes, bytes, dict[str, bytes]]) -> None:
    data, log, values = files
    salvaged = SalvagedMetadata(data, log[: len(log) // 2])
    assert salvaged.totals is None or salvaged.totals.commits < 2 * VALUES
    assert {path for path in salvaged.newest if path in values}
