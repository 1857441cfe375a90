"""What the local store is given of the world around it: the disk, time, chance, threads, and who writes its journal."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from pybroker.disk.disk import Disk
from pybroker.runtime.clock import Clock
from pybroker.runtime.threads import Threads


@dataclass(frozen=True, slots=True)
class StoreEnvironment:
    """Made by who opens a store; a test gives a disk with faults, and a simulator all of it."""

    disk: Disk = field(default_factory=Disk)
    clock: Clock = field(default_factory=Clock)
    random: random.Random = field(default_factory=random.SystemRandom)
    threads: Threads = field(default_factory=Threads)
