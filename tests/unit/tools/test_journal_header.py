"""Headers of journal files that are found from the batches behind them."""

from __future__ import annotations

import random

import pytest

from pybroker.storage_format.journal_layout import (
    FILE_HEADER_BYTES,
    FileHeader,
    align,
    encode_batch_header,
    encode_file_header,
)
from pybroker.tools.journal_header import with_new_header

HEADER = FileHeader(7, 0xDEADBEEF)


def journal_file(batches: int) -> bytes:
    data = encode_file_header(HEADER)
    for sequence in range(batches):
        body = random.Random(sequence).randbytes(300 * sequence + 10)
        batch = encode_batch_header(HEADER, sequence, 1, body) + body
        data += batch.ljust(align(len(batch)), b"\0")
    return data


@pytest.mark.parametrize("destroyed_bytes", [1, 28, FILE_HEADER_BYTES, FILE_HEADER_BYTES + 100])
def test_header_is_computed_from_batches_that_agree(destroyed_bytes: int) -> None:
    data = journal_file(5)
    found = with_new_header(bytes(destroyed_bytes) + data[destroyed_bytes:], HEADER.generation)
    assert found is not None
    assert found[:FILE_HEADER_BYTES] == data[:FILE_HEADER_BYTES]


def test_flipped_bit_is_found_without_any_batch() -> None:
    data = journal_file(0)
    for bit in range(28 * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert with_new_header(bytes(damaged), HEADER.generation) == data


def test_single_batch_proves_no_header() -> None:
    data = journal_file(1)
    assert with_new_header(bytes(FILE_HEADER_BYTES) + data[FILE_HEADER_BYTES:], HEADER.generation) is None


def test_damaged_batch_is_not_taken_for_a_whole_one() -> None:
    data = bytearray(journal_file(4))
    data[FILE_HEADER_BYTES + 40] ^= 1  # in the body of the first batch
    found = with_new_header(bytes(FILE_HEADER_BYTES) + bytes(data[FILE_HEADER_BYTES:]), HEADER.generation)
    assert found is not None
    assert found[:FILE_HEADER_BYTES] == encode_file_header(HEADER)
