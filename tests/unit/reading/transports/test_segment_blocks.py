"""Blocks in a buffer are entries only where their checksums are right, whether a block has one entry or many."""

import pytest

from pybroker.reading.transports.segment_blocks import BlockReader, DamagedBlocks
from pybroker.storage_format.segment_layout import encode_block

LEDGER_ID = 7


def blocks(*sizes: int) -> tuple[bytearray, list[bytes]]:
    """A block for each of `sizes`, of so many entries; and all entries."""
    data, payloads = bytearray(), []  # type: ignore[var-annotated]
    for size in sizes:
        own = [bytes([len(payloads) + number + 1]) * 50 for number in range(size)]
        data += b"".join(encode_block(LEDGER_ID, len(payloads), own, [1] * size))
        payloads += own
    return data, payloads


def read(data: bytearray, first: int, end: int) -> list[bytes]:
    run, _ = BlockReader(LEDGER_ID, first, end).read(memoryview(data))
    assert run is not None
    assert run.first_entry_id == first
    return [
        bytes(data[start : start + length])
        for start, length in zip(run.starts.tolist(), run.lengths.tolist(), strict=True)
    ]


@pytest.mark.parametrize("sizes", [(1,), (1, 1, 1), (3, 1, 2), (1, 4)])
def test_every_range_of_blocks_gives_its_entries(sizes: tuple[int, ...]) -> None:
    data, payloads = blocks(*sizes)
    for first in range(len(payloads)):
        for end in range(first + 1, len(payloads) + 1):
            assert read(data, first, end) == payloads[first:end]


@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 1), (1, 3), (3,)])
def test_an_entry_that_is_damaged_is_told_once_those_before_it_were_given(sizes: tuple[int, ...]) -> None:
    data, payloads = blocks(*sizes)
    for number, payload in enumerate(payloads):
        damaged = bytearray(data)
        damaged[data.index(payload) + 20] ^= 1
        reader = BlockReader(LEDGER_ID, 0, len(payloads))
        end = 0
        if number:
            run, end = reader.read(memoryview(damaged))
            assert run is not None
            assert run.entry_count == number
        with pytest.raises(DamagedBlocks, match="checksum of the payload") as damage:
            reader.read(memoryview(damaged), end)
        assert (damage.value.first_entry_id, damage.value.last_entry_id) == (number, number)
