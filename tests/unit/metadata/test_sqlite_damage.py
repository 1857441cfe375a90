"""A damaged metadata file returns correct values or an error: never other values, never fewer."""

import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from pybroker.disk.disk import Disk
from pybroker.errors import StoreError
from pybroker.metadata.metadata_store import Versioned
from pybroker.metadata.sqlite_metadata_store import SqliteMetadataStore

DESCRIPTORS = Path("/proc/self/fd")
NAME, MARK = "metadata.db", "metadata.end"
Contents = dict[str, bytes]


async def opened(directory: Path) -> SqliteMetadataStore:
    return await SqliteMetadataStore.open(directory / NAME, mark=directory / MARK)


async def killed(source: Path, target: Path, *, is_checkpointed: bool) -> Contents:
    """Return the answered content of a directory after `kill -9`."""
    store = await opened(source)
    contents = {f"/managed-ledgers/public/default/persistent/t{number}": b"%d" % number * 90 for number in range(60)}
    for path, value in contents.items():
        await store.put(path, b"before")
        await store.put(path, value)
    gone = [await store.delete(path) for path in list(contents)[::7]]
    assert all(gone)
    if is_checkpointed:
        await store.close()
        store = await opened(source)
        await store.put("/last", b"1")
    shutil.copytree(source, target)
    await store.close()
    kept = {path: value for number, (path, value) in enumerate(contents.items()) if number % 7}
    return kept | ({"/last": b"1"} if is_checkpointed else {})


async def read_all(directory: Path, paths: list[str]) -> Contents:
    """Raises StoreError for damage."""
    store = await opened(directory)
    try:
        names = await store.children("/managed-ledgers/public/default/persistent")
        found = [f"/managed-ledgers/public/default/persistent/{name}" for name in names]
        found += [path for path in paths if path == "/last"]
        values = {path: await store.get(path) for path in {*found, *paths}}
        return {path: value.value for path, value in values.items() if value is not None}
    finally:
        await store.close()


def flip(data: bytearray, chance: random.Random) -> None:
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def cut(data: bytearray, chance: random.Random) -> None:
    del data[chance.randrange(len(data)) :]


def zero(data: bytearray, chance: random.Random) -> None:
    start = chance.randrange(len(data))
    end = min(len(data), start + chance.choice((16, 512, 4096)))
    data[start:end] = bytes(end - start)


@pytest.mark.parametrize("is_checkpointed", [False, True], ids=["in the log", "in the file"])
@pytest.mark.parametrize("damage", [flip, cut, zero])
async def test_random_damage_is_told_or_does_no_harm(
    damage: Callable[[bytearray, random.Random], None], is_checkpointed: bool, tmp_path: Path
) -> None:
    (tmp_path / "source").mkdir()
    contents = await killed(tmp_path / "source", tmp_path / "killed", is_checkpointed=is_checkpointed)
    chance = random.Random(f"{damage.__name__} {is_checkpointed}")
    told = 0
    for number in range(40):
        directory = tmp_path / f"damaged{number}"
        shutil.copytree(tmp_path / "killed", directory)
        file = directory / chance.choice((NAME, NAME + "-wal", MARK) if number % 8 == 0 else (NAME, NAME + "-wal"))
        data = bytearray(file.read_bytes())
        if not data:
            continue
        damage(data, chance)
        file.write_bytes(data)
        try:
            assert await read_all(directory, list(contents)) == contents
        except StoreError:
            told += 1
        shutil.rmtree(directory)
    assert told > 5


@pytest.mark.parametrize("missing", [NAME + "-wal", NAME])
@pytest.mark.parametrize("is_emptied", [False, True])
async def test_a_file_that_is_missing_or_empty_is_told(missing: str, is_emptied: bool, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    contents = await killed(tmp_path / "source", tmp_path / "killed", is_checkpointed=True)
    (tmp_path / "killed" / missing).unlink()
    if is_emptied:
        (tmp_path / "killed" / missing).touch()
    for _ in range(2):  # a refusal changes nothing
        with pytest.raises(StoreError, match=r"of \d+ confirmed transactions.*metadata\.end"):
            await read_all(tmp_path / "killed", list(contents))
    (tmp_path / "killed" / MARK).unlink()
    assert "/last" not in await read_all(tmp_path / "killed", list(contents)), "as the text says"


async def test_an_older_copy_is_told(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    await store.put("/a", b"1")
    await store.close()
    older = (tmp_path / NAME).read_bytes()
    store = await opened(tmp_path)
    await store.put("/a", b"2")
    await store.close()
    (tmp_path / NAME).write_bytes(older)
    with pytest.raises(StoreError, match="older copy"):
        await opened(tmp_path)


async def test_a_value_that_is_damaged_while_it_is_open_fails_alone(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    await store.put("/a", b"1")
    await store.put("/b", b"2")
    other = sqlite3.connect(tmp_path / NAME, isolation_level=None)
    other.execute("UPDATE metadata SET value = x'33' WHERE path = '/a'")
    other.close()
    with pytest.raises(StoreError, match="'/a' differs from the value that was stored"):
        await store.get("/a")
    assert await store.get("/b") == Versioned(b"2", 0)
    await store.close()
    with pytest.raises(StoreError, match="damaged"):
        await opened(tmp_path)


async def test_a_file_of_the_first_layout_is_converted(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / NAME, isolation_level=None)
    connection.execute(
        "CREATE TABLE metadata (path TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL) WITHOUT ROWID"
    )
    connection.executemany("INSERT INTO metadata VALUES (?, ?, ?)", [(f"/{n}", b"%d" % n, n) for n in range(100)])
    connection.execute("PRAGMA user_version = 1")
    connection.close()
    for _ in range(2):
        store = await opened(tmp_path)
        assert [await store.get(f"/{n}") for n in range(100)] == [Versioned(b"%d" % n, n) for n in range(100)]
        await store.close()
    connection = sqlite3.connect(tmp_path / NAME, isolation_level=None)
    connection.execute("UPDATE metadata SET path = '/x' WHERE path = '/7'")
    connection.close()
    with pytest.raises(StoreError, match="'/x' differs from the value that was stored"):
        await opened(tmp_path)


async def test_a_start_that_is_refused_leaves_the_damaged_log_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    target = tmp_path / "target"
    await killed(tmp_path / "source", target, is_checkpointed=False)
    log = target / f"{NAME}-wal"
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    for _ in range(2):
        with pytest.raises(StoreError, match=r"its write-ahead log .* is damaged"):
            await SqliteMetadataStore.open(target / NAME, Disk(), target / MARK)
        assert log.read_bytes() == data


def open_files(directory: Path) -> list[str]:
    """Return the names of the files in `directory` that this process has open."""
    targets = [link.resolve() for link in DESCRIPTORS.iterdir()]
    return [target.name for target in targets if target.parent == directory]


@pytest.mark.skipif(not DESCRIPTORS.is_dir(), reason="needs /proc")
async def test_a_start_that_is_refused_leaves_no_file_open(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    await store.put("/a", b"x")
    await store.close()
    (tmp_path / NAME).unlink()
    for _ in range(2):
        with pytest.raises(StoreError, match="contains only 0 of 2 confirmed transactions"):
            await opened(tmp_path)
        assert open_files(tmp_path) == []
