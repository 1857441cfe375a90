"""Orphaned ledgers: a named, young or foreign ledger is never deleted."""

from __future__ import annotations

import asyncio
import tracemalloc
from array import array
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.bookkeeper import BookKeeperError, DigestType, LedgerMetadata, Quorums
from pybroker.bookkeeper.errors import InvalidMetadata
from pybroker.bookkeeper.inspection.orphan_deletion import OrphanCounts, OrphanDeletion
from pybroker.bookkeeper.inspection.orphan_rule import OrphanRule, OrphanVerdict
from pybroker.bookkeeper.ledger_metadata import LedgerState, Segment
from pybroker.bookkeeper_store.orphans.named_ledgers import ledgers_in
from pybroker.errors import StoreError
from pybroker.ledgers.ledger_properties import (
    AGE_FACTOR,
    APPLICATION,
    CLUSTER,
    COMPONENT,
    MANAGED_LEDGER,
    NAMED_WITHIN,
    ClusterMark,
    cluster_properties,
    managed_ledger_properties,
    named_within_ms,
)
from pybroker.runtime.clock import Clock
from pybroker.wire import varint

NOW_MS, AGE_MS = 1_000_000, 1000
MARK = ClusterMark.of_age("c1", AGE_MS)
OWN = managed_ledger_properties(MARK, "public/default/persistent/t")
REQUIRED = cluster_properties("c1")


def new_rule() -> OrphanRule:
    return OrphanRule(cluster_properties("c1"), MANAGED_LEDGER, named_within_ms, AGE_FACTOR, AGE_MS)


RULE = new_rule()


class FixedClock(Clock):
    def wall_ms(self) -> int:
        return NOW_MS


def ledger(
    custom: Mapping[str, bytes], created_ms: int | None, state: LedgerState = LedgerState.OPEN
) -> LedgerMetadata:
    segments = (Segment(0, ("b1",)),)
    return LedgerMetadata(
        Quorums(1, 1, 1), DigestType.CRC32C, b"", segments, state, created_ms=created_ms, custom=dict(custom)
    )


class World:
    """Ledgers and documents in memory. Beside a run, names appear, ledgers cannot be closed, and the leader changes.

    `violation` is the first deletion that the rules forbid.
    """

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.ledgers = {ledger_id: self._ledger() for ledger_id in range(chance.randint(0, 250))}
        self.named = {each for each in self.ledgers if chance.random() < 0.3}
        self.named_later = {each for each in self.ledgers if chance.random() < 0.1}
        self.stubborn = {each for each in self.ledgers if chance.random() < 0.1}
        self.leader_steps = chance.choice((1, 3, 20, 10_000, 10_000))
        self.unreadable_reading = chance.choice((0, 0, 0, 1, 2))
        self.readings = 0
        self.closed: set[int] = set()
        self.closed_at_last_reading: set[int] = set()
        self.at_start = dict(self.ledgers)
        self.violation = ""

    def _ledger(self) -> LedgerMetadata:
        chance, custom = self.chance, dict(OWN)
        if chance.random() < 0.4:
            key = chance.choice(sorted(OWN))
            custom[key] = chance.choice((b"", b"c2", b"schema", b"9" * 30))
        if chance.random() < 0.3:
            custom[NAMED_WITHIN] = chance.choice((b"1", b"%d" % AGE_MS))  # of brokers with other configurations
        age_ms = chance.choice((AGE_MS, 2 * AGE_MS, AGE_FACTOR * AGE_MS, AGE_MS - 1, 0, -5))
        return ledger(custom, chance.choice((None, *[NOW_MS - age_ms] * 5)), chance.choice(list(LedgerState)))

    async def ledger_pages(self) -> AsyncIterator[list[int]]:
        ids = sorted(self.ledgers)
        for start in range(0, len(ids), 120):
            yield ids[start : start + 120]

    async def metadata_of_all(
        self, ledger_ids: Sequence[int]
    ) -> AsyncIterator[tuple[int, LedgerMetadata | InvalidMetadata]]:
        for ledger_id in ledger_ids:
            if ledger_id % 50 == 49:
                yield ledger_id, InvalidMetadata("unreadable")
            else:
                yield ledger_id, self.ledgers[ledger_id]

    async def read(self, take: Callable[[Collection[int]], None]) -> None:
        self.leader_steps -= 1
        self.readings += 1
        if self.readings == self.unreadable_reading:
            raise StoreError("a document cannot be read")
        self.closed_at_last_reading = set(self.closed)
        take([each for each in self.named if each % 2])
        take([each for each in self.named if not each % 2])

    async def recover_ledger(self, ledger_id: int) -> None:
        self.leader_steps -= 1
        self.named |= self.named_later  # The names appear behind the first reading.
        if ledger_id in self.stubborn:
            raise BookKeeperError("the bookies do not answer")
        self.closed.add(ledger_id)

    async def delete_ledger(self, ledger_id: int) -> None:
        found = self.ledgers.pop(ledger_id)
        promise = found.custom.get(NAMED_WITHIN, b"")
        reasons = {
            "named": ledger_id in self.named,
            "of another cluster or part": any(found.custom.get(key) != value for key, value in REQUIRED.items()),
            "without a managed ledger": not found.custom.get(MANAGED_LEDGER),
            "without a promise": not promise.isdigit() or len(promise) > 15,
            "without a time of creation": found.created_ms is None,
            "young": found.created_ms is not None and found.created_ms > NOW_MS - AGE_MS,
            "named in time by its promise": found.created_ms is not None
            and promise.isdigit()
            and found.created_ms > NOW_MS - AGE_FACTOR * int(promise),
            "not closed before the names were read": ledger_id not in self.closed_at_last_reading,
            "deleted by a broker that is not the leader": self.leader_steps < 0,
            "deleted although a document cannot be read": 0 < self.unreadable_reading <= self.readings,
        }
        self.violation = self.violation or next((reason for reason, is_true in reasons.items() if is_true), "")

    async def is_leader(self) -> bool:
        self.leader_steps -= 1
        return self.leader_steps >= 0

    async def sleep(self, delay_s: float) -> None:
        """The time does not matter."""

    async def run(self, kind: type[OrphanDeletion], rule: OrphanRule) -> None:
        with suppress(StoreError):
            await kind(self, rule, self, self.is_leader, FixedClock(), self.sleep).run()

    def orphans_left(self) -> set[int]:
        """The ledgers that a complete run must have deleted."""
        return {
            each
            for each, found in self.ledgers.items()
            if RULE.verdict(each, found, self.named | self.stubborn, NOW_MS) is OrphanVerdict.ORPHANED
            and each % 50 != 49
        }


def first_violation(kind: type[OrphanDeletion], rule: OrphanRule, seeds: int) -> str:
    for seed in range(seeds):
        world = World(Random(seed))
        asyncio.run(world.run(kind, rule))
        if world.violation:
            return world.violation
        if world.leader_steps > 0 and not 0 < world.unreadable_reading <= world.readings:
            assert not world.orphans_left(), f"seed {seed}"
    return ""


def test_only_own_old_and_unnamed_ledgers_are_deleted() -> None:
    assert first_violation(OrphanDeletion, RULE, 400) == ""


def test_ledgers_are_deleted_in_the_model() -> None:
    deleted = 0
    for seed in range(50):
        world = World(Random(seed))
        asyncio.run(world.run(OrphanDeletion, RULE))
        deleted += len(world.at_start) - len(world.ledgers)
    assert deleted > 100


class IgnoresFirstNames(OrphanDeletion):
    async def _without_names(self, ledger_ids: array[int]) -> array[int]:
        await self._names.read(lambda _: None)
        return ledger_ids


class ReadsNamesOnce(OrphanDeletion):
    _reads = 0

    async def _without_names(self, ledger_ids: array[int]) -> array[int]:
        self._reads += 1
        return await super()._without_names(ledger_ids) if self._reads == 1 else ledger_ids


class DoesNotClose(OrphanDeletion):
    async def _is_closed(self, ledger_id: int, counts: OrphanCounts) -> bool:
        return True


class DeletesWhatItCannotClose(OrphanDeletion):
    async def _is_closed(self, ledger_id: int, counts: OrphanCounts) -> bool:
        return await super()._is_closed(ledger_id, counts) or True


class ReadsNamesBeforeClosing(OrphanDeletion):
    """Reads the names a second time, but before the ledgers are closed."""

    async def _delete_orphans(self, candidates: array[int], counts: OrphanCounts) -> bool:
        orphans = await self._without_names(await self._without_names(candidates))
        for ledger_id in orphans:
            if not await self._is_leader():
                return False
            if await self._is_closed(ledger_id, counts):
                await self._delete(ledger_id, counts)
        return True


class AsksOnceForTheLeader(OrphanDeletion):
    async def run(self) -> OrphanCounts:
        is_leader = await self._is_leader()

        async def answer() -> bool:
            return is_leader

        self._is_leader = answer
        return await super().run()


class IgnoresUnreadableDocuments(OrphanDeletion):
    async def _without_names(self, ledger_ids: array[int]) -> array[int]:
        try:
            return await super()._without_names(ledger_ids)
        except StoreError:
            return ledger_ids


class MissesTheFirstId(OrphanDeletion):
    async def _without_names(self, ledger_ids: array[int]) -> array[int]:
        found = await super()._without_names(ledger_ids)
        return array("q", sorted({*found, *ledger_ids[:1]}))


def changed_rule(change: Callable[[OrphanRule], None]) -> OrphanRule:
    rule = new_rule()
    change(rule)
    return rule


RULE_MUTANTS: dict[str, Callable[[OrphanRule], None]] = {
    "any cluster": lambda rule: rule._required.pop(CLUSTER),  # type: ignore[attr-defined]
    "any component": lambda rule: rule._required.pop(COMPONENT),  # type: ignore[attr-defined]
    "any application": lambda rule: rule._required.pop(APPLICATION),  # type: ignore[attr-defined]
    "without a managed ledger": lambda rule: setattr(rule, "_owner_key", APPLICATION),
    "a millisecond too young": lambda rule: setattr(rule, "_min_age_ms", AGE_MS - 1),
    "without an age": lambda rule: rule.__dict__.update(_min_age_ms=-10, _age_factor=0),
    "ignores the promise": lambda rule: setattr(rule, "_age_factor", 0),
    "needs no promise": lambda rule: setattr(rule, "_named_within_ms", lambda _: 0),
}


@pytest.mark.parametrize("name", RULE_MUTANTS)
def test_mutants_of_the_rule_are_found(name: str) -> None:
    assert first_violation(OrphanDeletion, changed_rule(RULE_MUTANTS[name]), 400) != ""


@pytest.mark.parametrize(
    "kind",
    [
        IgnoresFirstNames,
        ReadsNamesOnce,
        DoesNotClose,
        DeletesWhatItCannotClose,
        ReadsNamesBeforeClosing,
        AsksOnceForTheLeader,
        IgnoresUnreadableDocuments,
        MissesTheFirstId,
    ],
)
def test_mutants_of_the_deletion_are_found(kind: type[OrphanDeletion]) -> None:
    assert first_violation(kind, RULE, 400) != ""


async def test_many_ledgers_need_little_memory() -> None:
    """100,000 old ledgers, all named, of which the metadata are decoded one hundred at a time."""
    old = ledger(OWN, 0)

    class Many(World):
        async def ledger_pages(self) -> AsyncIterator[list[int]]:
            for start in range(0, 100_000, 10_000):
                yield list(range(start, start + 10_000))

        async def metadata_of_all(
            self, ledger_ids: Sequence[int]
        ) -> AsyncIterator[tuple[int, LedgerMetadata | InvalidMetadata]]:
            assert len(ledger_ids) <= 100
            for ledger_id in ledger_ids:
                yield ledger_id, old

        async def read(self, take: Callable[[Collection[int]], None]) -> None:
            for ledger_id in range(100_000):
                take((ledger_id,))

        async def sleep(self, delay_s: float) -> None:
            slept.append(delay_s)

    slept: list[float] = []
    world = Many(Random(1))
    world.leader_steps = 10_000
    deletion = OrphanDeletion(world, RULE, world, world.is_leader, FixedClock(), world.sleep)
    tracemalloc.start()
    counts = await deletion.run()
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (counts.examined, counts.deleted, counts.is_complete) == (100_000, 0, True)
    assert sum(slept) == pytest.approx(50)
    assert peak_bytes < 8_000_000


def test_verdicts_name_the_reason() -> None:
    old = NOW_MS - AGE_MS
    cases = {
        OrphanVerdict.ORPHANED: (ledger(OWN, old), ()),
        OrphanVerdict.NAMED: (ledger(OWN, old), (1,)),
        OrphanVerdict.YOUNG: (ledger(OWN, old + 1), ()),
        OrphanVerdict.WITHOUT_AGE: (ledger(OWN, None), ()),
        OrphanVerdict.FOREIGN: (ledger(managed_ledger_properties(ClusterMark("c2", 5), "t"), old), ()),
    }
    for verdict, (metadata, named) in cases.items():
        assert RULE.verdict(1, metadata, named, NOW_MS) is verdict


def test_rule_without_marks_or_age_is_refused() -> None:
    with pytest.raises(ValueError, match="other applications"):
        OrphanRule({}, MANAGED_LEDGER, named_within_ms, AGE_FACTOR, AGE_MS)
    with pytest.raises(ValueError, match="other applications"):
        OrphanRule(OWN, MANAGED_LEDGER, named_within_ms, AGE_FACTOR, 0)


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint.encode(number << 3) + varint.encode(value)
    return varint.encode(number << 3 | 2) + varint.encode(len(value)) + value


def test_ledgers_in_documents_of_java_brokers() -> None:
    ledgers = b"".join(field(1, field(1, each) + field(2, 5) + field(3, 700)) for each in (7, 3_000_000_000))
    document = ledgers + field(3, field(1, b"key") + field(2, b"value"))
    assert ledgers_in("/t", document, is_cursor=False) == [7, 3_000_000_000]
    assert ledgers_in("/t", b"", is_cursor=False) == []
    assert ledgers_in("/t/c", field(1, 9) + field(2, 7) + field(3, 4), is_cursor=True) == [9]
    assert ledgers_in("/t/c", field(1, -1) + field(2, 7) + field(3, 4), is_cursor=True) == []


@pytest.mark.parametrize(
    ("document", "is_cursor"),
    [
        (b"\x47\x78\x00\x00\x00\x04abcd", False),
        (field(1, field(2, 5)), False),
        (field(1, field(1, 5) + field(1, 6)), False),
        (field(1, b"\x08"), False),
        (b"\x0a\x7f", False),
        (b"", True),
        (field(2, 3), True),
        (b"{not JSON", False),
    ],
)
def test_unreadable_documents_are_errors(document: bytes, is_cursor: bool) -> None:
    with pytest.raises(StoreError):
        ledgers_in("/t", document, is_cursor=is_cursor)


@given(st.lists(st.integers(0, (1 << 63) - 1), max_size=5), st.integers(0, 60))
def test_truncated_documents_are_errors_or_end_behind_a_ledger(ids: list[int], end: int) -> None:
    document = b"".join(field(1, field(1, each)) for each in ids)[:end]
    try:
        found = ledgers_in("/t", document, is_cursor=False)
    except StoreError:
        return
    assert document == b"".join(field(1, field(1, each)) for each in found)
