"""A pipeline in a process of its own that dies by SIGKILL where it is told to: python -m tests.tables.lake.child ..."""

import argparse
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from tests.tables.lake.made_up_topic import MadeUpPlanner
from tests.tables.lake.tables import open_table, pipeline_of

from pybroker.lake import steps
from pybroker.lake.lake_pipeline import LeaseHeld, LeaseLost
from pybroker.lake.partitioning import parse_partitioning
from pybroker.lake.table_format import TableMissing
from pybroker.lake.table_maintenance import Maintenance, MaintenanceOptions

EXIT_REFUSED = 3


class Killer:
    """Kills this process at the n-th time that a step is reached, or at a random one."""

    def __init__(self, step: str, nth: int, chance: float, seed: int) -> None:
        self._step = step
        self._left = nth
        self._chance = chance
        self._random = random.Random(seed)

    def reached(self, step: str) -> None:
        if step == self._step:
            self._left -= 1
        if (step == self._step and self._left == 0) or self._random.random() < self._chance:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--deaths", default="", help="step:nth,step:nth: a process for each, that must die there")
    parser.add_argument("--chance", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--entries", type=int, default=400)
    parser.add_argument("--partition-by", default="none")
    parser.add_argument("--take-over", action="store_true")
    parser.add_argument("--maintain", action="store_true")
    options = parser.parse_args()
    _listen_inside_the_catalog()
    # Forked before any thread runs: what takes long is the import.
    for death in filter(None, options.deaths.split(",")):
        step, _, nth = death.partition(":")
        process_id = os.fork()
        if not process_id:
            steps.listen(Killer(step, int(nth), 0.0, 0).reached)
            os._exit(run(options))
        code = os.waitstatus_to_exitcode(os.waitpid(process_id, 0)[1])
        assert code == -signal.SIGKILL, f"{death}: ended with {code}"
    steps.listen(Killer("", 0, options.chance, options.seed).reached)
    return run(options)


def run(options: argparse.Namespace) -> int:
    table = open_table(options.kind, options.directory)
    if options.maintain:
        maintenance = Maintenance(table, MaintenanceOptions(merge_at_count=4, keep_versions=3))
        try:
            for _ in range(200):
                maintenance.merge()
                maintenance.expire(2**60)
        except TableMissing:
            return EXIT_REFUSED  # before the writers have made it
        return 0
    planner = MadeUpPlanner({"persistent://t/n/a": {1: options.entries // 2, 2: options.entries // 2}})
    pipeline = pipeline_of(
        table,
        planner,
        f"process {os.getpid()}",
        commit_bytes=20_000,
        takes_over=options.take_over,
        partitioning=parse_partitioning(options.partition_by),
    )
    try:
        pipeline.begin()
        while pipeline.step():
            pass
        pipeline.end()
    except (LeaseHeld, LeaseLost):
        return EXIT_REFUSED
    return 0


def _listen_inside_the_catalog() -> None:
    """A step between the metadata file and the row of the catalog that names it."""
    write = SqlCatalog._write_metadata

    def write_and_tell(*arguments: Any, **named: Any) -> None:
        write(*arguments, **named)
        steps.reached("metadata-written")

    SqlCatalog._write_metadata = staticmethod(write_and_tell)


if __name__ == "__main__":
    sys.exit(main())
