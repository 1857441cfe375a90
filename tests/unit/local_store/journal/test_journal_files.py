"""Sizes of journal files, and the moment at which the next one is created: a store that writes little writes few zeros."""

from pathlib import Path

from tests.support.fault_disk import FaultDisk
from tests.unit.local_store.stores import FilesAtOnce

from pybroker.local_store.free_space import StorageSpace
from pybroker.local_store.journal.journal_files import SHORT_FILE_BYTES, JournalFiles
from pybroker.local_store.store_environment import StoreEnvironment
from pybroker.local_store.store_options import LocalStoreOptions

DIRECTORY = Path("/data/journal")
FULL_BYTES = 12 << 20  # not a power of two times the size of the first file


def started_files(disk: FaultDisk) -> JournalFiles:
    environment = StoreEnvironment(disk, threads=FilesAtOnce())
    space = StorageSpace(environment, DIRECTORY, LocalStoreOptions())
    files = JournalFiles(environment, DIRECTORY, FULL_BYTES, 1, space)
    files.start()
    return files


def file_sizes(disk: FaultDisk) -> list[int]:
    return sorted(size for name, size in disk.file_sizes(DIRECTORY).items() if name.endswith(".journal"))


def fill_current(files: JournalFiles, last_sequence: int) -> None:
    place = files.current.place
    place.offset, place.last_sequence = place.capacity_bytes, last_sequence
    files.written_to(place.offset)


def test_next_file_is_created_when_the_current_one_is_half_full() -> None:
    disk = FaultDisk()
    files = started_files(disk)
    assert file_sizes(disk) == [SHORT_FILE_BYTES]
    files.written_to(SHORT_FILE_BYTES // 2 - 512)
    assert file_sizes(disk) == [SHORT_FILE_BYTES]
    files.written_to(SHORT_FILE_BYTES // 2)
    files.written_to(SHORT_FILE_BYTES // 2 + 512)
    assert file_sizes(disk) == [SHORT_FILE_BYTES, 2 * SHORT_FILE_BYTES]
    files.close(is_covered=False)


def test_file_that_is_needed_earlier_is_created_at_once() -> None:
    disk = FaultDisk()
    files = started_files(disk)
    assert files.take_next().place.capacity_bytes == 2 * SHORT_FILE_BYTES
    files.close(is_covered=False)


def test_files_grow_to_the_full_size_which_alone_is_reused() -> None:
    disk = FaultDisk()
    files = started_files(disk)
    capacities = []
    for sequence in range(5):
        capacities.append(files.current.place.capacity_bytes)
        fill_current(files, sequence)
        files.take_next()
        files.release(sequence + 1)  # a checkpoint covers all full files
    assert capacities == [SHORT_FILE_BYTES, 2 * SHORT_FILE_BYTES, FULL_BYTES, FULL_BYTES, FULL_BYTES]
    assert file_sizes(disk) == [FULL_BYTES, FULL_BYTES]
    files.close(is_covered=True)
    assert file_sizes(disk) == [FULL_BYTES, FULL_BYTES]
    again = started_files(FaultDisk())
    assert again.current.place.capacity_bytes == SHORT_FILE_BYTES
    again.close(is_covered=True)
