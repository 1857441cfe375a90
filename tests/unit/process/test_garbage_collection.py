"""Collection of cyclic garbage, in a separate process: the collector is that of the whole interpreter."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"
PRELUDE = """
import gc, weakref
from pybroker.process.garbage_collection import GarbagePolicy
from pybroker.runtime.clock import Clock
from pybroker.model.counters import BrokerStats

class Cycle:
    def __init__(self):
        self.me = self

def old_cycle():
    # Kept over two young collections, so that it is frozen, and then given up.
    cycle = Cycle()
    policy_turns()
    return weakref.ref(cycle)

def policy_turns():
    keep = [[index] for index in range(60_000)]
    del keep

ended = 0
stats = BrokerStats()
policy = GarbagePolicy(stats, Clock(), lambda: ended)
policy.start()
"""


def run(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + script],
        env={"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_young_cycles_are_found_without_a_collection_of_everything() -> None:
    run("cycle = weakref.ref(Cycle()); policy_turns(); assert cycle() is None; assert stats.gc_full_collections == 1")


def test_what_survives_is_not_visited_again() -> None:
    run("""
kept = [[index] for index in range(500_000)]
assert stats.gc_pauses_ms.count > 20
assert len(gc.get_objects(2)) == 0
""")


def test_what_was_frozen_in_use_is_found_by_a_collection_of_everything() -> None:
    run("cycle = old_cycle(); policy_turns(); assert cycle() is not None; policy.collect_all(); assert cycle() is None")


def test_everything_is_collected_when_half_as_much_was_added_and_there_is_time() -> None:
    run("""
base = [[index] for index in range(400_000)]
policy.collect_all()
cycle = old_cycle()
kept = [[index] for index in range(500_000)]
policy.check(0.5)
assert cycle() is not None
policy.check(0.0)
assert cycle() is None
""")


def test_nobody_waits_for_a_quiet_time_once_there_is_far_more() -> None:
    run("kept = [[index] for index in range(1_500_000)]; policy.check(1.0); assert stats.gc_full_collections == 2")


def test_what_was_added_and_freed_again_does_not_count() -> None:
    run("""
kept = [[index] for index in range(400_000)]
del kept
policy.check(0.0)
assert stats.gc_full_collections == 1
""")


def test_topics_that_ended_are_a_reason_once() -> None:
    run("""
ended = 5_000
policy.check(0.0)
policy.check(0.0)
assert stats.gc_full_collections == 2
""")


def test_nothing_is_collected_once_the_process_is_about_to_end() -> None:
    run("""
policy.rest()
ended = 5_000
policy.check(0.0)
policy_turns()
assert stats.gc_full_collections == 1
assert not gc.isenabled()
policy.stop()
assert gc.isenabled()
""")


def test_afterwards_the_collector_is_as_it_was() -> None:
    run("""
policy.stop()
assert gc.get_threshold() == (700, 10, 10)
assert not gc.callbacks
assert gc.get_freeze_count() == 0
""")


def test_a_broker_inside_of_another_program_leaves_the_collector_alone() -> None:
    assert gc.get_freeze_count() == 0
