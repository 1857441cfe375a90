"""Orphaned ledgers: a named, young or foreign ledger is never deleted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.bookkeeper import DigestType, LedgerMetadata, Quorums
from pybroker.bookkeeper.errors import InvalidMetadata
from pybroker.bookkeeper.inspection.orphan_rule import OrphanRule, OrphanVerdict
from pybroker.bookkeeper.inspection.orphan_search import OrphanSearch
from pybroker.bookkeeper.ledger_metadata import LedgerState, Segment
from pybroker.errors import StoreError
from pybroker.ledgers.ledger_properties import MANAGED_LEDGER, cluster_properties, managed_ledger_properties
from pybroker.runtime.clock import Clock
from pybroker.tools.ledgers_on_bookkeeper.named_ledgers import ledgers_in
from pybroker.wire import varint

NOW_MS, AGE_MS = 1_000_000, 1000
OWN = managed_ledger_properties("c1", "public/default/persistent/t")
RULE = OrphanRule(cluster_properties("c1"), MANAGED_LEDGER, AGE_MS)


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


def own_with_changes(changes: dict[str, bytes | None]) -> dict[str, bytes]:
    return {key: value for key, value in (OWN | changes).items() if value is not None}


CUSTOM = st.one_of(
    st.just(OWN),
    st.dictionaries(st.sampled_from(sorted(OWN)), st.sampled_from([None, b"", b"c2", b"pulsar", b"schema"])).map(
        own_with_changes
    ),
    st.dictionaries(st.text(max_size=5), st.binary(max_size=5), max_size=3),
)
CREATED = st.one_of(
    st.none(), st.integers(NOW_MS - 2 * AGE_MS, NOW_MS + AGE_MS), st.integers(-(1 << 63), (1 << 63) - 1)
)
LEDGERS = st.dictionaries(
    st.integers(0, 20), st.builds(ledger, CUSTOM, CREATED, st.sampled_from(LedgerState)), max_size=12
)


class Store:
    """Ledgers in memory. Names appear while the ledgers are listed."""

    def __init__(self, ledgers: dict[int, LedgerMetadata], named: set[int]) -> None:
        self.ledgers = dict(ledgers)
        self.named = named
        self.named_later: set[int] = set()

    async def metadata_of_all(
        self, ledger_ids: Sequence[int]
    ) -> AsyncIterator[tuple[int, LedgerMetadata | InvalidMetadata]]:
        for ledger_id in ledger_ids:
            if ledger_id in self.ledgers:
                yield ledger_id, self.ledgers[ledger_id]
        self.named |= self.named_later

    async def delete_ledger(self, ledger_id: int) -> None:
        del self.ledgers[ledger_id]

    async def read_names(self) -> set[int]:
        return set(self.named)


def may_be_deleted(ledger_id: int, found: LedgerMetadata, named: set[int]) -> bool:
    """The rule once more, in other words."""
    marks = [found.custom.get(key) == value for key, value in OWN.items() if key != MANAGED_LEDGER]
    is_old = found.created_ms is not None and found.created_ms <= NOW_MS - AGE_MS
    return all(marks) and found.custom.get(MANAGED_LEDGER, b"") != b"" and is_old and ledger_id not in named


@given(LEDGERS, st.sets(st.integers(0, 20)), st.sets(st.integers(0, 20)), st.integers(0, 6))
def test_only_own_old_and_unnamed_ledgers_are_deleted(
    ledgers: dict[int, LedgerMetadata], named: set[int], named_later: set[int], leader_checks: int
) -> None:
    store = Store(ledgers, set(named))
    store.named_later = named_later
    answers = iter([True] * leader_checks)
    search = OrphanSearch(store, RULE, store.read_names, FixedClock())
    deleted = asyncio.run(search.delete(sorted(ledgers), lambda: next(answers, False)))
    possible = {each for each, found in ledgers.items() if may_be_deleted(each, found, named | named_later)}
    assert set(deleted) == ledgers.keys() - store.ledgers.keys()
    assert set(deleted) <= possible
    if leader_checks > len(ledgers):
        assert set(deleted) == possible


def test_verdicts_name_the_reason() -> None:
    old = NOW_MS - AGE_MS
    cases = {
        OrphanVerdict.ORPHANED: (ledger(OWN, old), ()),
        OrphanVerdict.NAMED: (ledger(OWN, old), (1,)),
        OrphanVerdict.YOUNG: (ledger(OWN, old + 1), ()),
        OrphanVerdict.WITHOUT_AGE: (ledger(OWN, None), ()),
        OrphanVerdict.FOREIGN: (ledger(managed_ledger_properties("c2", "t"), old), ()),
    }
    for verdict, (metadata, named) in cases.items():
        assert RULE.verdict(1, metadata, named, NOW_MS) is verdict


def test_rule_without_marks_or_age_is_refused() -> None:
    with pytest.raises(ValueError, match="other applications"):
        OrphanRule({}, MANAGED_LEDGER, AGE_MS)
    with pytest.raises(ValueError, match="other applications"):
        OrphanRule(OWN, MANAGED_LEDGER, 0)


async def test_nothing_is_deleted_if_a_document_cannot_be_read() -> None:
    store = Store({1: ledger(OWN, 0)}, set())

    async def unreadable() -> set[int]:
        raise StoreError("a document cannot be read")

    with pytest.raises(StoreError):
        await OrphanSearch(store, RULE, unreadable, FixedClock()).delete([1], lambda: True)
    assert store.ledgers.keys() == {1}


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
