"""Hashes that stay with a consumer until it has all chunks of a large message."""

from __future__ import annotations

import pytest

from pybroker.dispatch.chunks.chunked_messages import ChunkedMessages
from pybroker.dispatch.consumer_state import ConsumerState, KeySharedOptions
from pybroker.dispatch.key_shared.hash_owners import HashOwners
from pybroker.dispatch.key_shared.kept_hashes import KeptHashes
from pybroker.dispatch.pending_acks import PendingAcks
from pybroker.model.chunk import Chunk
from pybroker.model.position import Position

LEDGER = 5
LOW, HIGH = 100, 40_000
"""Hashes in the lower half, which moves to the second consumer, and in the upper half, which stays with the first."""


class Consumers:
    """Two consumers of one subscription; the test determines which chunks each of them holds."""

    def __init__(self, *, out_of_order: bool) -> None:
        options = KeySharedOptions(None, out_of_order)
        self.pending = PendingAcks()
        self.chunked = ChunkedMessages(self.pending)
        self.owners = HashOwners(0)
        self.kept = KeptHashes(self.owners, self.chunked)
        self.first, self.second = (ConsumerState(name, 0, 0, None, options) for name in ("first", "second"))
        self.owners.add(self.first, is_first=True)

    def deliver(
        self, consumer: ConsumerState, uuid: bytes, entry_id: int, sticky_hash: int, chunk_count: int = 2
    ) -> None:
        self.pending.add(consumer, LEDGER, [entry_id], [1], [sticky_hash])
        self.chunked.delivered(Chunk(uuid, 0, chunk_count), consumer, Position(LEDGER, entry_id), sticky_hash)

    def join_second(self) -> None:
        self.owners.add(self.second, is_first=False)
        assert self.owners.selector.owner(LOW) is self.second
        assert self.owners.selector.owner(HIGH) is self.first


@pytest.fixture
def ordered() -> Consumers:
    return Consumers(out_of_order=False)


@pytest.fixture
def unordered() -> Consumers:
    return Consumers(out_of_order=True)


def test_only_moved_hashes_of_incomplete_messages_are_kept(ordered: Consumers) -> None:
    ordered.deliver(ordered.first, b"low", 0, LOW)
    ordered.deliver(ordered.first, b"high", 1, HIGH)
    ordered.deliver(ordered.first, b"complete", 2, LOW + 1, chunk_count=1)
    assert not ordered.kept.keep_unfinished(ordered.first), "no hash has moved"
    ordered.join_second()
    assert ordered.kept.keep_unfinished(ordered.first)
    assert ordered.kept.by_hash == {LOW: ordered.first}


def test_kept_hash_is_elsewhere_for_every_consumer_but_its_keeper(ordered: Consumers) -> None:
    assert not ordered.kept.is_elsewhere(ordered.first, LOW)
    assert not ordered.kept.is_elsewhere(ordered.second, LOW), "with ordered delivery the owner follows other rules"
    ordered.kept.keep(ordered.first, LOW)
    assert not ordered.kept.is_elsewhere(ordered.first, LOW)
    assert ordered.kept.is_elsewhere(ordered.second, LOW)


def test_hash_is_released_when_its_message_is_complete(ordered: Consumers) -> None:
    ordered.deliver(ordered.first, b"low", 0, LOW)
    ordered.join_second()
    ordered.kept.keep_unfinished(ordered.first)
    assert ordered.kept.release_finished() == []
    ordered.deliver(ordered.first, b"low", 1, LOW)
    assert ordered.kept.release_finished() == [LOW]
    assert not ordered.kept.by_hash


def test_leaving_consumer_releases_only_its_own_hashes(ordered: Consumers) -> None:
    ordered.kept.keep(ordered.first, LOW)
    ordered.kept.keep(ordered.second, HIGH)
    assert ordered.kept.release(ordered.first) == [LOW]
    assert ordered.kept.by_hash == {HIGH: ordered.second}


def test_released_hash_stays_at_another_holder_with_out_of_order_delivery(unordered: Consumers) -> None:
    unordered.deliver(unordered.first, b"one", 0, LOW)
    unordered.join_second()
    assert unordered.kept.keep_at_holders([LOW])
    assert unordered.kept.by_hash == {LOW: unordered.first}


def test_released_hash_returns_to_an_owner_with_an_incomplete_message(unordered: Consumers) -> None:
    unordered.deliver(unordered.first, b"one", 0, LOW)
    unordered.join_second()
    unordered.deliver(unordered.second, b"two", 1, LOW)
    assert not unordered.kept.keep_at_holders([LOW])
    assert unordered.kept.is_elsewhere(unordered.first, LOW)
    assert not unordered.kept.keep_unfinished(unordered.first)
    assert not unordered.kept.by_hash


def test_released_hash_is_not_kept_elsewhere_with_ordered_delivery(ordered: Consumers) -> None:
    ordered.deliver(ordered.first, b"one", 0, LOW)
    ordered.join_second()
    assert not ordered.kept.keep_at_holders([LOW])
