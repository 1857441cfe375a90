"""The environment of the local store: disk, clock, randomness, and threads."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from pybroker.disk.disk import Disk
from pybroker.runtime.clock import Clock
from pybroker.runtime.slow_operations import SlowOperations
from pybroker.runtime.threads import Threads


@dataclass(frozen=True, slots=True)
class StoreEnvironment:
    """The parts of the operating system that a store uses. Tests pass a disk with faults; a simulator replaces every
    part.
    """

    disk: Disk = field(default_factory=Disk)
    clock: Clock = field(default_factory=Clock)
    random: random.Random = field(default_factory=random.SystemRandom)
    threads: Threads = field(default_factory=Threads)
    slow_operations: SlowOperations = field(default_factory=lambda: SlowOperations(Clock(), 0))
