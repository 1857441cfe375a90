"""The cache holds the newest entries of all ledgers, returns them unchanged, and never exceeds its limit.

A plain list of runs is the model; random tests compare both after every step, and must find the mutants.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from pybroker.ledgers.ledger_store import AppendListener, AppendRun, EntryRun
from pybroker.managed_ledger.cache import entry_cache
from pybroker.managed_ledger.cache.entry_cache import EntryCache, count_within

SEEDS = range(40)


class Nobody(AppendListener):
    def append_completed(self, runs: list[AppendRun], error: Exception | None) -> None:
        raise AssertionError("the cache tells nobody")


NOBODY = Nobody()


def run_of(ledger_id: int, first_entry_id: int, payloads: list[bytes], counts: list[int] | None = None) -> AppendRun:
    size_bytes = sum(map(len, payloads))
    return AppendRun(NOBODY, ledger_id, first_entry_id, payloads, counts or [1] * len(payloads), size_bytes, None)


def payloads_of(run: EntryRun | None) -> list[bytes] | None:
    return None if run is None else run.payloads


def test_entries_are_read_as_they_went_in() -> None:
    cache = EntryCache(1000)
    cache.insert(run_of(5, 0, [b"a", b"bb"], [1, 7]))
    cache.insert(run_of(5, 2, [b"ccc"], [3]))
    read = cache.read(5, 1, 100, 1000)
    assert read is not None
    assert (read.ledger_id, read.first_entry_id, read.payloads, read.message_counts) == (5, 1, [b"bb", b"ccc"], [7, 3])
    assert (cache.size_bytes, cache.entry_count) == (6, 3)


def test_a_read_is_bounded_in_entries_and_in_bytes_but_has_one_at_least() -> None:
    cache = EntryCache(1000)
    cache.insert(run_of(5, 0, [b"aaaa", b"bbbb", b"cccc", b"dddd"]))
    assert payloads_of(cache.read(5, 0, 2, 1000)) == [b"aaaa", b"bbbb"]
    assert payloads_of(cache.read(5, 1, 100, 8)) == [b"bbbb", b"cccc"]
    assert payloads_of(cache.read(5, 1, 100, 11)) == [b"bbbb", b"cccc"]
    assert payloads_of(cache.read(5, 1, 100, 12)) == [b"bbbb", b"cccc", b"dddd"]
    assert payloads_of(cache.read(5, 3, 100, 1)) == [b"dddd"]


def test_what_is_not_held_is_a_miss() -> None:
    cache = EntryCache(1000)
    cache.insert(run_of(5, 10, [b"a", b"b"]))
    assert cache.read(5, 9, 1, 100) is None
    assert cache.read(5, 12, 1, 100) is None
    assert cache.read(6, 10, 1, 100) is None
    assert cache.misses_total == 3
    assert cache.read(5, 10, 2, 100) is not None
    assert cache.hits_total == 2


def test_the_oldest_run_of_all_ledgers_leaves_first_whoever_reads_it() -> None:
    cache = EntryCache(10)
    cache.insert(run_of(5, 0, [b"aaa"]))
    cache.insert(run_of(6, 0, [b"bbb"]))
    cache.insert(run_of(5, 1, [b"ccc"]))
    assert cache.read(5, 0, 1, 100) is not None
    cache.insert(run_of(6, 1, [b"ddd"]))
    assert cache.read(5, 0, 1, 100) is None
    assert payloads_of(cache.read(6, 0, 9, 100)) == [b"bbb", b"ddd"]
    assert payloads_of(cache.read(5, 1, 9, 100)) == [b"ccc"]
    assert (cache.size_bytes, cache.evicted_entries_total) == (9, 1)
    cache.check_invariants()


def test_a_run_larger_than_the_limit_is_held_alone_until_the_next() -> None:
    cache = EntryCache(10)
    cache.insert(run_of(5, 0, [b"a"]))
    cache.insert(run_of(5, 1, [b"x" * 50]))
    assert cache.read(5, 0, 1, 100) is None
    assert payloads_of(cache.read(5, 1, 1, 100)) == [b"x" * 50]
    cache.insert(run_of(6, 0, [b"b"]))
    assert cache.read(5, 1, 1, 100) is None
    assert cache.size_bytes == 1


@pytest.mark.parametrize("next_entry_id", [0, 1, 3, 100])
def test_what_lies_before_a_gap_is_forgotten(next_entry_id: int) -> None:
    cache = EntryCache(1000)
    cache.insert(run_of(5, 0, [b"a", b"b"]))
    cache.insert(run_of(6, 0, [b"other"]))
    cache.insert(run_of(5, next_entry_id, [b"c"]))
    assert payloads_of(cache.read(5, next_entry_id, 9, 100)) == [b"c"]
    assert next_entry_id == 0 or cache.read(5, 0, 1, 100) is None
    assert payloads_of(cache.read(6, 0, 9, 100)) == [b"other"]
    assert (cache.size_bytes, cache.entry_count) == (6, 2)
    cache.check_invariants()


def test_a_dropped_ledger_leaves_the_others_in_place() -> None:
    cache = EntryCache(1000)
    for entry_id in range(3):
        cache.insert(run_of(5, entry_id, [b"five"]))
        cache.insert(run_of(6, entry_id, [b"six"]))
    cache.drop_ledger(5)
    cache.drop_ledger(99)
    assert cache.read(5, 0, 1, 100) is None
    assert payloads_of(cache.read(6, 0, 9, 100)) == [b"six"] * 3
    assert (cache.size_bytes, cache.entry_count, cache.evicted_entries_total) == (9, 3, 0)
    cache.check_invariants()


def test_evicted_entries_give_their_memory_back_at_once() -> None:
    cache = EntryCache(100)
    for entry_id in range(1000):
        cache.insert(run_of(5, entry_id, [b"x" * 10]))
    (tail,) = cache._tails.values()
    assert sum(map(len, tail.payloads)) == 100
    assert cache.entry_count == 10


@pytest.mark.parametrize(("max_bytes", "count"), [(0, 0), (2, 0), (3, 1), (5, 1), (6, 2), (100, 3)])
def test_as_many_payloads_are_counted_as_fit(max_bytes: int, count: int) -> None:
    assert count_within([b"abc", b"def", b"ghi"], max_bytes) == count


# --- random walks beside a plain list ----------------------------------------------------------------------------------


@dataclass
class Model:
    """Runs in order of insertion: (ledger id, first entry id, payloads, message counts)."""

    limit_bytes: int
    runs: list[tuple[int, int, list[bytes], list[int]]] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        return sum(len(payload) for run in self.runs for payload in run[2])

    def entries_of(self, ledger_id: int) -> dict[int, tuple[bytes, int]]:
        return {
            first + index: entry
            for ledger, first, payloads, counts in self.runs
            if ledger == ledger_id
            for index, entry in enumerate(zip(payloads, counts, strict=True))
        }

    def insert(self, ledger_id: int, first_entry_id: int, payloads: list[bytes], counts: list[int]) -> None:
        held = self.entries_of(ledger_id)
        if held and max(held) + 1 != first_entry_id:
            self.drop(ledger_id)
        self.runs.append((ledger_id, first_entry_id, payloads, counts))
        while self.size_bytes > self.limit_bytes and len(self.runs) > 1:
            del self.runs[0]

    def drop(self, ledger_id: int) -> None:
        self.runs = [run for run in self.runs if run[0] != ledger_id]

    def read(self, ledger_id: int, first: int, max_entries: int, max_bytes: int) -> list[tuple[bytes, int]] | None:
        held = self.entries_of(ledger_id)
        if first not in held:
            return None
        found = [held[first]]
        for entry_id in range(first + 1, first + max_entries):
            if entry_id not in held or sum(len(payload) for payload, _ in found) + len(held[entry_id][0]) > max_bytes:
                break
            found.append(held[entry_id])
        return found


def check_same(cache: EntryCache, model: Model, chance: random.Random, next_entry_ids: dict[int, int]) -> None:
    cache.check_invariants()
    assert cache.size_bytes == model.size_bytes
    assert cache.size_bytes <= cache.limit_bytes or len(model.runs) == 1
    assert cache.entry_count == sum(len(run[2]) for run in model.runs)
    for ledger_id, end in next_entry_ids.items():
        held = model.entries_of(ledger_id)
        likely = [chance.randrange(end + 2), *(edge + step for edge in [*list(held)[:1], end] for step in (-1, 0))]
        for first in likely:
            max_entries, max_bytes = chance.randint(1, 12), chance.randint(1, 120)
            read = cache.read(ledger_id, first, max_entries, max_bytes)
            expected = model.read(ledger_id, first, max_entries, max_bytes)
            if expected is None:
                assert read is None
            else:
                assert read is not None
                assert (read.ledger_id, read.first_entry_id) == (ledger_id, first)
                assert list(zip(read.payloads, read.message_counts, strict=True)) == expected


def walk(cache: EntryCache, seed: int, step_count: int = 120) -> None:
    """Random inserts, gaps and drops, compared with the model after each."""
    chance = random.Random(seed)
    model = Model(cache.limit_bytes)
    next_entry_ids = dict.fromkeys(range(1, chance.randint(2, 5)), 0)
    for _ in range(step_count):
        ledger_id = chance.choice(list(next_entry_ids))
        step = chance.random()
        if step < 0.04:
            cache.drop_ledger(ledger_id)
            model.drop(ledger_id)
        else:
            first = next_entry_ids[ledger_id] + (chance.randint(1, 5) if step < 0.08 else 0)
            payloads = [chance.randbytes(chance.randint(1, 25)) for _ in range(chance.randint(1, 6))]
            counts = [chance.randint(1, 9) for _ in payloads]
            cache.insert(run_of(ledger_id, first, payloads, counts))
            model.insert(ledger_id, first, payloads, counts)
            next_entry_ids[ledger_id] = first + len(payloads)
        check_same(cache, model, chance, next_entry_ids)


@pytest.fixture(autouse=True)
def _early_compaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_cache, "_COMPACT_AT", 8)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_cache_is_the_model_after_every_step(seed: int) -> None:
    walk(EntryCache(random.Random(seed).choice([1, 50, 300, 2000])), seed)


class EvictsTheYoungest(EntryCache):
    def _evict(self) -> None:
        self._runs.rotate(1)
        super()._evict()


class ForgetsToCountWhatLiesBeforeAGap(EntryCache):
    def drop_ledger(self, ledger_id: int) -> None:
        self._tails.pop(ledger_id, None)


class LosesItsPlaceWhenItCompacts(EntryCache):
    def _evict(self) -> None:
        firsts = {ledger_id: tail.first_entry_id for ledger_id, tail in self._tails.items()}
        super()._evict()
        for ledger_id, tail in self._tails.items():
            tail.first_entry_id = firsts[ledger_id]


class ReadsWhatWasEvicted(EntryCache):
    def read(self, ledger_id: int, first_entry_id: int, max_entries: int, max_bytes: int) -> EntryRun | None:
        if (tail := self._tails.get(ledger_id)) is not None:
            tail.start = 0
        return super().read(ledger_id, first_entry_id, max_entries, max_bytes)


class HoldsOneRunTooMany(EntryCache):
    def insert(self, run: AppendRun) -> None:
        self.limit_bytes += 20
        super().insert(run)
        self.limit_bytes -= 20


class JoinsAcrossAGap(EntryCache):
    def insert(self, run: AppendRun) -> None:
        if (tail := self._tails.get(run.ledger_id)) is not None:
            tail.first_entry_id = run.first_entry_id - len(tail.payloads)
        super().insert(run)


@pytest.mark.parametrize(
    "broken",
    [
        EvictsTheYoungest,
        ForgetsToCountWhatLiesBeforeAGap,
        LosesItsPlaceWhenItCompacts,
        ReadsWhatWasEvicted,
        HoldsOneRunTooMany,
        JoinsAcrossAGap,
    ],
)
def test_a_planted_bug_is_found_by_a_walk(broken: type[EntryCache]) -> None:
    with pytest.raises((AssertionError, IndexError, KeyError)):
        walk_all(broken)


def walk_all(cache_type: type[EntryCache]) -> None:
    for seed in SEEDS:
        walk(cache_type(random.Random(seed).choice([50, 300])), seed)


def test_a_read_that_gives_too_many_bytes_is_found_by_a_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_cache, "count_within", lambda payloads, max_bytes: count_within(payloads, max_bytes) + 1)
    with pytest.raises(AssertionError):
        walk_all(EntryCache)


def test_entries_leave_by_age_at_the_second_call_and_younger_ones_stay() -> None:
    cache = EntryCache(1 << 20)
    for number in range(1000):
        cache.insert(run_of(number % 3, number // 3, [b"old"]))
    for _ in cache.evict_old():
        cache.check_invariants()
    assert cache.entry_count == 1000, "all of it came since the call before"
    cache.insert(run_of(7, 0, [b"young"]))
    pauses = sum(1 for _ in cache.evict_old())
    assert pauses > 1, "the caller can yield to the event loop"
    cache.check_invariants()
    assert cache.entry_count == 1
    for _ in cache.evict_old():
        cache.check_invariants()
    assert (cache.entry_count, cache.size_bytes) == (0, 0)


def test_cache_that_is_read_keeps_old_entries_until_it_is_read_no_more() -> None:
    cache = EntryCache(1 << 20)
    cache.insert(run_of(7, 0, [b"old"]))
    for _ in range(3):
        assert payloads_of(cache.read(7, 0, 1, 100)) == [b"old"]
        for _ in cache.evict_old():
            cache.check_invariants()
    assert cache.entry_count == 1
    for _ in cache.evict_old():
        cache.check_invariants()
    assert (cache.entry_count, cache.size_bytes) == (0, 0)


def test_inserts_and_dropped_ledgers_between_steps_of_an_eviction_by_age_break_nothing() -> None:
    random_numbers = random.Random(5)
    cache = EntryCache(4000)
    next_entry = dict.fromkeys(range(4), 0)
    for _ in range(200):
        for _ in cache.evict_old():
            ledger_id = random_numbers.randrange(4)
            if random_numbers.random() < 0.2:
                cache.drop_ledger(ledger_id)
        for _ in range(random_numbers.randrange(20)):
            ledger_id = random_numbers.randrange(4)
            cache.insert(run_of(ledger_id, next_entry[ledger_id], [bytes(random_numbers.randrange(50))]))
            next_entry[ledger_id] += 1
        cache.check_invariants()
