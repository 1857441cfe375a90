"""Every state that a power cut may leave of a running broker: a sample of cuts of a record, each rebuilt by chance and judged.

Databases, journal (with the writer thread and with the kernel's direct IO), segments: all are in the record, in one order.
POWER_CUT_SEED and POWER_CUTS choose others and more. Threads make each record another one, so a failure keeps it as a file;
POWER_CUT_RECORD names that file and POWER_CUT_NUMBER the cut to judge alone, with the same seed.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import shutil
from pathlib import Path
from random import Random

import pytest
from tests.crash.cut_world import Told, judge, record
from tests.support.cut_states import MODES, PowerCut, make
from tests.support.recorded_disk import Event

pytestmark = pytest.mark.long

SEED = int(os.environ.get("POWER_CUT_SEED", "1"))
CUTS = int(os.environ.get("POWER_CUTS", "120"))
RECORD = os.environ.get("POWER_CUT_RECORD")
NUMBER = os.environ.get("POWER_CUT_NUMBER")


def recorded(directory: Path, *, direct_io: bool) -> tuple[Path, list[Event]]:
    """The record and the directory that it is of."""
    if RECORD:
        root, events = pickle.loads(Path(RECORD).read_bytes())
        return root, events
    disk = asyncio.run(record(directory, SEED, direct_io=direct_io))
    return disk.root, disk.events


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("direct_io", [False, True], ids=["thread", "direct"])
def test_nothing_that_was_told_is_lost_whatever_a_power_cut_leaves(tmp_path: Path, direct_io: bool, mode: str) -> None:
    root, events = recorded(tmp_path / "run", direct_io=direct_io)
    for number in range(CUTS) if NUMBER is None else [int(NUMBER)]:
        random = Random(f"{SEED}:{number}:{mode}")
        cut = random.randrange(len(events) + 1)
        state = tmp_path / "state"
        make(PowerCut(events, cut).state(mode, random), root, state)
        try:
            judge(state, Told.at(events, cut))
        except BaseException as error:
            kept = tmp_path / "record.pickle"
            kept.write_bytes(pickle.dumps((root, events)))
            error.add_note(
                f"POWER_CUT_SEED={SEED} POWER_CUT_NUMBER={number} POWER_CUT_RECORD={kept} ({mode}, {cut} of {len(events)})"
            )
            raise
        shutil.rmtree(state)
