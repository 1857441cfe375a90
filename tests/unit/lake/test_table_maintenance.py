"""Which files are merged."""

from pybroker.lake.table_format import TableFile
from pybroker.lake.table_maintenance import MaintenanceOptions, groups_to_merge

OPTIONS = MaintenanceOptions(merge_at_count=4, target_file_bytes=10_000_000)


def files(
    count: int, size_bytes: int, partition: int | None = None, *, is_of_present_layout: bool = True
) -> list[TableFile]:
    return [
        TableFile(f"{partition}-{size_bytes}-{i}", size_bytes, 1, partition, is_of_present_layout=is_of_present_layout)
        for i in range(count)
    ]


def test_small_files_of_one_partition_and_size_are_merged_when_there_are_enough() -> None:
    assert groups_to_merge(files(3, 1000), OPTIONS) == []
    assert groups_to_merge(files(4, 1000), OPTIONS) == [files(4, 1000)]
    assert groups_to_merge(files(3, 1000, 1) + files(3, 1000, 2), OPTIONS) == []


def test_a_file_that_was_merged_waits_for_others_of_its_size() -> None:
    assert groups_to_merge(files(3, 1000) + files(3, 1_000_000), OPTIONS) == []


def test_large_files_and_those_of_an_earlier_partitioning_are_left() -> None:
    assert groups_to_merge(files(9, 6_000_000), OPTIONS) == []
    assert groups_to_merge(files(9, 1000, is_of_present_layout=False), OPTIONS) == []


def test_a_group_is_about_one_file_of_the_wished_size() -> None:
    groups = groups_to_merge(files(20, 2_000_000), OPTIONS)
    assert [len(group) for group in groups] == [4, 4, 4, 4, 4]
