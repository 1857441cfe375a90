"""Selection of a partition for each row, as in Pulsar's clients: by a hash of the key, or round robin without a key."""

from __future__ import annotations

from typing import Any

import mmh3
import numpy as np
import pyarrow as pa

from pybroker.columns.packed_columns import key_text
from pybroker.model.hashing import java_string_hash

_NON_NEGATIVE = 0x7FFF_FFFF
Numbers = np.ndarray[Any, Any]


def partitions_of(keys: pa.Array | None, count: int, partition_count: int, in_turn: int, *, is_murmur: bool) -> Numbers:
    """Return the partition number of each of `count` rows. All rows without a key get the same partition, `in_turn`
    modulo `partition_count`, so that they form batches. `keys` is None if no row has a key. `is_murmur`: keys are
    hashed by Murmur3, otherwise by Java's String.hashCode.
    """
    without = np.full(count, in_turn % partition_count, np.int64)
    if keys is None or partition_count == 1 or keys.null_count == count:
        return without
    text, _ = key_text(keys)
    encoded = text.dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    hashes = _murmur(encoded.dictionary) if is_murmur else java_string_hashes(encoded.dictionary)
    of_unique = (hashes & _NON_NEGATIVE) % partition_count
    codes = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)
    found = of_unique[codes]
    if keys.null_count:
        found = np.where(text.is_valid().to_numpy(zero_copy_only=False), found, without)
    return np.asarray(found, np.int64)


def _murmur(keys: pa.Array) -> Numbers:
    return np.fromiter((mmh3.hash(key, 0, False) for key in keys.to_pylist()), np.int64, len(keys))


def java_string_hashes(keys: pa.Array) -> Numbers:
    """Return the result of Java's String.hashCode for each key, as unsigned 32-bit numbers."""
    _, offsets_buffer, data_buffer = keys.buffers()
    count = len(keys)
    if not count:
        return np.zeros(0, np.int64)
    offsets = np.frombuffer(offsets_buffer, np.int32, count + 1, keys.offset * 4).astype(np.int64)
    data = np.zeros(0, np.uint8) if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    if offsets[-1] > offsets[0] and data[offsets[0] : offsets[-1]].max() >= 0x80:
        return np.fromiter((java_string_hash(key) for key in keys.to_pylist()), np.int64, count)
    # Processes all keys of one length together, one character position at a time: no Python code for each key.
    hashes = np.zeros(count, np.uint32)
    lengths = np.diff(offsets)
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        starts = offsets[rows]
        found = np.zeros(len(rows), np.uint32)
        for place in range(int(length)):
            found = found * np.uint32(31) + data[starts + place]
        hashes[rows] = found
    return hashes.astype(np.int64)
