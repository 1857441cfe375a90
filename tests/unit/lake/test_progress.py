"""Positions, leases and file names as they are kept in tables."""

import pytest

from pybroker.lake.orphaned_files import Leftovers, file_prefix
from pybroker.lake.progress import (
    Lease,
    Progress,
    ProgressUnreadable,
    check_pipeline_name,
    lease_of,
    lease_text,
    positions_of,
    positions_text,
)
from pybroker.reading.positions import Place

POSITIONS = {"persistent://t/n/a-partition-1": Place(2**40, 0), "persistent://t/n/ü": Place(3, 7)}


def test_positions_come_back_from_their_text_which_is_the_same_for_the_same_positions() -> None:
    assert positions_of(positions_text(POSITIONS)) == POSITIONS
    assert positions_text(dict(reversed(POSITIONS.items()))) == positions_text(POSITIONS)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"v":1}', '{"v":1,"t":[]}', '{"v":1,"t":{"a":[1]}}', '{"v":1,"t":{"a":["x",1]}}']
)
def test_positions_that_are_not_readable_are_an_error_and_not_the_beginning(text: str) -> None:
    with pytest.raises(ProgressUnreadable):
        positions_of(text)


def test_positions_of_a_newer_release_say_so() -> None:
    with pytest.raises(ProgressUnreadable, match="newer pybroker"):
        positions_of('{"v":2,"t":{}}')


def test_a_lease_has_a_new_epoch_with_each_owner() -> None:
    first = Lease().taken_by("a", 100)
    assert (first.epoch, first.is_held(99), first.is_held(100)) == (1, True, False)
    assert first.renewed(200).epoch == 1
    assert not first.released().is_held(0)
    assert first.taken_by("b", 300) == Lease("b", 2, 300)
    assert lease_of(lease_text(first)) == first


def test_a_position_never_moves_back() -> None:
    progress = Progress({"a": Place(1, 5)})
    assert progress.moved({"a": Place(1, 6)}, Lease()).positions == {"a": Place(1, 6)}
    with pytest.raises(AssertionError, match="would move back"):
        progress.moved({"a": Place(1, 4)}, Lease())


@pytest.mark.parametrize("name", ["", "a/b", "a.b", "snap-1", "ü", "a" * 101])
def test_a_name_that_cannot_be_part_of_a_file_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="--name"):
        check_pipeline_name(name)


def test_files_of_an_epoch_that_is_over_may_go_at_once_and_others_by_age() -> None:
    leftovers = Leftovers("main", epoch=3, older_than_ms=1000)
    assert leftovers.may_go("/t/data/main.e2.00ff.parquet", 5000)
    assert leftovers.may_go("/t/metadata/snap-77-0-main.e1.00ff.avro", 5000)
    assert not leftovers.may_go("/t/data/main.e3.00ff.parquet", 5000)
    assert leftovers.may_go("/t/data/main.e3.00ff.parquet", 999)
    assert not leftovers.may_go("/t/data/merged.00ff.parquet", 5000)
    assert not leftovers.may_go("/t/metadata/00007-x.metadata.json", 5000)


@pytest.mark.parametrize("other", ["main2", "xmain", "main-e1-x", "a-main", "Main"])
def test_files_of_another_pipeline_are_never_taken_for_ones_own(other: str) -> None:
    assert Leftovers("main", 9, 0).epoch_of(f"/data/{file_prefix(other, 1)}.00ff.parquet") is None
    assert Leftovers(other, 9, 0).epoch_of(f"/data/{file_prefix('main', 1)}.00ff.parquet") is None
