"""Both scanners of entries, fed with a great many damaged entries: the same records, and nothing else happens.

What must hold: whatever the bytes are, the compiled scanner and its twin write the same records. `python -m
tests.fuzz.test_scanners SEED COUNT` does the same without pytest, for a build with sanitizers.
"""

from __future__ import annotations

import os
import random
import sys

import numpy as np
import pytest
from tests.unit.columns.entries import Message, batch_entry, entry_of, indexed, metadata, run_of, single_entry
from tests.unit.columns.test_scanners import messages_of

from pybroker.columns.pure_python import python_scanner
from pybroker.columns.scanner import COMPILED
from pybroker.columns.scanner_layout import ENTRY
from pybroker.wire import pulsar_api_pb2 as pb

ENTRIES = 20_000
BATCH = 40
TAGS = bytes((8, 10, 16, 18, 24, 32, 34, 40, 42, 48, 50, 58, 64, 72, 80, 88, 96, 106, 0, 1, 2, 0x7F, 0x80, 0xFF))


def message(dice: random.Random) -> Message:
    return Message(
        dice.choice([None, b"", b"value" * dice.randrange(5)]),
        dice.choice([None, b"", b"key"]),
        dice.random() < 0.2,
        [(dice.choice("abcdefgh"), "x" * dice.randrange(3)) for _ in range(dice.choice([0, 0, 1, 3, 18]))],
        dice.choice([None, 0, 1 << 63]),
        dice.choice([None, b"ordering"]),
        dice.choice([None, 5, (1 << 64) - 1]),
        dice.random() < 0.1,
    )


def entry(dice: random.Random) -> bytes:
    rare = {
        "partition_key": "k",
        "event_time": 5,
        "schema_version": b"\0" * 8,
        "replicated_from": "west",
        "uuid": "u",
        "num_chunks_from_msg": 3,
        "chunk_id": dice.randrange(-1, 4),
        "null_value": True,
        "marker_type": 1,
    }
    fields = {name: value for name, value in rare.items() if dice.random() < 0.15}
    codec = dice.choice([pb.NONE, pb.NONE, pb.NONE, pb.LZ4])
    kind = dice.randrange(4)
    if kind == 0:
        made = single_entry(message(dice), codec, **fields)
    elif kind == 1:
        made = entry_of(
            metadata(num_messages_in_batch=dice.randrange(-1, 9), **fields), dice.randbytes(dice.randrange(60))
        )
    else:
        made = batch_entry([message(dice) for _ in range(dice.randrange(1, 6))], codec, **fields)
    return indexed(made, dice.getrandbits(64)) if dice.random() < 0.2 else made


def damaged(dice: random.Random) -> bytes:
    made = bytearray(entry(dice))
    for _ in range(dice.choice([0, 1, 1, 2, 5])):
        at = dice.randrange(len(made) + 1)
        match dice.randrange(5):
            case 0:
                del made[at:]
            case 1:
                made[at:at] = dice.randbytes(dice.randrange(4))
            case 2:
                del made[at : at + dice.randrange(5)]
            case _:
                made[at : at + 1] = bytes((dice.choice(TAGS),))
    return bytes(made)


def compare(seed: int, count: int) -> None:
    assert COMPILED is not None
    dice = random.Random(seed)
    for _ in range(count // BATCH):
        entries = [damaged(dice) for _ in range(BATCH)]
        run = run_of(entries, gap=dice.choice([b"", b"\x80\xff"]))
        records, expected = np.zeros(BATCH, ENTRY), np.zeros(BATCH, ENTRY)
        COMPILED.scan_entries(run.data, run.starts, run.lengths, records)
        python_scanner.scan_entries(run.data, run.starts, run.lengths, expected)
        assert records.tobytes() == expected.tobytes(), f"seed {seed}"
        settings = (
            dice.getrandbits(7),
            dice.choice([1, 100, 1 << 40]),
            dice.choice([1, 7, 500]),
            dice.choice([0, 5, 5000]),
        )
        steps = messages_of(COMPILED, [run.data], records, *settings)
        assert steps == messages_of(python_scanner, [run.data], expected, *settings), f"seed {seed}"


@pytest.mark.skipif(COMPILED is None, reason="the scanner is not compiled here")
def test_damaged_entries_come_to_the_same_records() -> None:
    compare(int(os.environ.get("FUZZ_SEED", "1")), ENTRIES)


if __name__ == "__main__":
    compare(int(sys.argv[1]), int(sys.argv[2]))
