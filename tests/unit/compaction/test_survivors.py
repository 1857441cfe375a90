"""Compaction against a model that is a dictionary, with mutants."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.unit.compaction.entries import CODECS, Said, batch, framed, read, single

from pybroker.compaction import messages, survivors
from pybroker.compaction.messages import Batch, read_entry
from pybroker.compaction.survivors import Survivors
from pybroker.model.position import Position
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.broker_entry_metadata import with_broker_metadata
from pybroker.wire.entry_metadata import message_metadata

Entries = list[tuple[Position, bytes]]
Kept = dict[tuple[Position, int], Said]

KEYS = st.one_of(st.none(), st.sampled_from(["", "a", "b", "c", "k" * 32, "k" * 33, "k" * 40]))
SAID = st.builds(Said, KEYS, st.sampled_from([b"", b"1", b"22", b"x" * 300]))
CODEC = st.sampled_from(CODECS)
ENTRY = st.one_of(st.builds(single, SAID, CODEC), st.builds(batch, st.lists(SAID, min_size=1, max_size=5), CODEC))
STREAM = st.lists(st.tuples(st.integers(0, 1), ENTRY), max_size=25)


def placed(stream: Sequence[tuple[int, bytes]]) -> Entries:
    """Put the entries into ledgers; 1 in front of an entry begins another ledger."""
    ledger_id, entry_id, entries = 3, -1, []
    for begins_ledger, entry in stream:
        ledger_id, entry_id = (ledger_id + 2, 0) if begins_ledger else (ledger_id, entry_id + 1)
        entries.append((Position(ledger_id, entry_id), entry))
    return entries


def compacted(entries: Entries, make: Callable[..., Survivors] = Survivors, *, keeps: bool = False) -> Entries:
    both = make(keeps_messages_without_key=keeps)
    for position, entry in entries:
        both.note(position, entry)
    left = [(position, both.kept(position, entry)) for position, entry in entries]
    return [(position, entry) for position, entry in left if entry is not None]


def seen(entries: Entries) -> Kept:
    return {(position, index): said for position, entry in entries for index, said in read(entry).items()}


def expected(entries: Entries, *, keeps: bool) -> Kept:
    """The model."""
    last: dict[str, tuple[Position, int]] = {}
    everything = seen(entries)
    for place, said in everything.items():
        if said.key is not None:
            last.pop(said.key, None)
            if said.value:
                last[said.key] = place
    return {
        place: said
        for place, said in everything.items()
        if (keeps if said.key is None else last.get(said.key) == place)
    }


def check(stream: Sequence[tuple[int, bytes]], cut: int, make: Callable[..., Survivors], *, keeps: bool) -> None:
    entries = placed(stream)
    once = compacted(entries, make, keeps=keeps)
    assert seen(once) == expected(entries, keeps=keeps)
    # In two steps, the second on the result of the first: the same result.
    assert seen(compacted(compacted(entries[:cut], make, keeps=keeps) + entries[cut:], make, keeps=keeps)) == seen(once)
    assert once == sorted(once, key=lambda each: each[0])


@given(STREAM, st.integers(0, 25), st.booleans())
@settings(max_examples=150, deadline=None)
def test_what_is_left_is_what_a_dictionary_says(stream: list[tuple[int, bytes]], cut: int, keeps: bool) -> None:
    check(stream, cut, Survivors, keeps=keeps)


class KeepsTheFirst(Survivors):
    def _note(self, key: bytes | None, number: int, *, is_tombstone: bool) -> None:
        if key is None or key not in self._last or is_tombstone:
            super()._note(key, number, is_tombstone=is_tombstone)


class ForgetsTombstones(Survivors):
    def _note(self, key: bytes | None, number: int, *, is_tombstone: bool) -> None:
        if not is_tombstone:
            super()._note(key, number, is_tombstone=is_tombstone)


class KeepsWholeBatches(Survivors):
    def kept(self, position: Position, entry: bytes) -> bytes | None:
        return None if super().kept(position, entry) is None else entry


class MixesUpLongKeys(Survivors):
    def _note(self, key: bytes | None, number: int, *, is_tombstone: bool) -> None:
        super()._note(key and key[:32], number, is_tombstone=is_tombstone)

    def _keeps(self, key: bytes | None, number: int) -> bool:
        return super()._keeps(key and key[:32], number)


class TakesNoKeyForAnEmptyOne(Survivors):
    def _note(self, key: bytes | None, number: int, *, is_tombstone: bool) -> None:
        super()._note(key or b"", number, is_tombstone=is_tombstone)


class LosesTheIndex(Survivors):
    def _note(self, key: bytes | None, number: int, *, is_tombstone: bool) -> None:
        super()._note(key, number >> 32 << 32, is_tombstone=is_tombstone)


@pytest.mark.parametrize(
    "broken",
    [
        KeepsTheFirst,
        ForgetsTombstones,
        KeepsWholeBatches,
        MixesUpLongKeys,
        TakesNoKeyForAnEmptyOne,
        LosesTheIndex,
    ],
)
def test_the_model_finds_a_planted_bug(broken: type[Survivors]) -> None:
    @given(STREAM, st.integers(0, 25), st.booleans())
    @settings(max_examples=500, deadline=None, database=None, derandomize=True, phases=[Phase.generate])
    def search(stream: list[tuple[int, bytes]], cut: int, keeps: bool) -> None:
        check(stream, cut, broken, keeps=keeps)

    with pytest.raises(AssertionError):
        search()


def test_removed_messages_are_those_that_were_replaced_deleted_or_have_no_key() -> None:
    both = Survivors(keeps_messages_without_key=False)
    for entry_id, said in enumerate(
        [Said("a", b"0"), Said("a", b"1"), Said(None, b"n"), Said("b", b"0"), Said("b", b"")]
    ):
        both.note(Position(1, entry_id), single(said))
    assert (both.removed_messages, both.key_count) == (3, 1)


def test_an_entry_that_keeps_all_of_its_messages_keeps_its_bytes() -> None:
    entry = batch([Said("a", b"1"), Said("b", b"2")], pb.LZ4)
    assert compacted([(Position(1, 0), entry)]) == [(Position(1, 0), entry)]


def test_a_rewritten_batch_keeps_its_metadata_and_the_indexes_of_its_messages() -> None:
    first = batch([Said("a", b"1"), Said("b", b"2"), Said("c", b"3")], pb.ZSTD, event_time=77)
    left = compacted([(Position(1, 0), first), (Position(1, 1), single(Said("b", b"4")))])
    metadata = message_metadata(left[0][1])
    assert (metadata.num_messages_in_batch, metadata.compression, metadata.event_time) == (3, pb.ZSTD, 77)
    assert read(left[0][1]) == {0: Said("a", b"1"), 2: Said("c", b"3")}


def test_what_the_broker_put_in_front_of_an_entry_stays() -> None:
    first = with_broker_metadata(batch([Said("a", b"1"), Said("b", b"2")]), 5, 6)
    left = compacted([(Position(1, 0), first), (Position(1, 1), single(Said("a", b"3")))])
    front = len(first) - len(batch([Said("a", b"1"), Said("b", b"2")]))
    assert left[0][1][:front] == first[:front]
    assert read(left[0][1]) == {1: Said("b", b"2")}


def test_an_encrypted_batch_stays_whole_and_an_encrypted_message_goes_by_its_key() -> None:
    keys = [pb.EncryptionKeys(key="k", value=b"v")]
    entries = [
        (Position(1, 0), batch([Said("a", b"1"), Said("b", b"")], encryption_keys=keys)),
        (Position(1, 1), single(Said("a", b"secret"), encryption_keys=keys)),
        (Position(1, 2), single(Said("a", b"later"), encryption_keys=keys)),
    ]
    assert compacted(entries) == [entries[0], entries[2]]


def metadata(**fields: Any) -> pb.MessageMetadata:
    return pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, **fields)


@pytest.mark.parametrize(
    "entry",
    [
        b"",
        b"\x00\x00\x00\x05nonsense",
        framed(metadata(num_messages_in_batch=3), b"\0\0"),
        framed(metadata(num_messages_in_batch=1, compression=pb.LZ4, uncompressed_size=100), b"no lz4"),
        framed(metadata(num_messages_in_batch=1, uncompressed_size=messages.MAX_BATCH_BYTES + 1), b""),
    ],
)
def test_an_entry_that_cannot_be_opened_stays_as_it_is(entry: bytes) -> None:
    assert compacted([(Position(1, 0), entry)]) == [(Position(1, 0), entry)]


def test_a_marker_goes() -> None:
    assert compacted([(Position(1, 0), single(Said(None, b""), marker_type=10))], keeps=True) == []


def chunk(key: str, uuid: str, index: int, count: int) -> bytes:
    return single(Said(key, b"part"), uuid=uuid, chunk_id=index, num_chunks_from_msg=count, total_chunk_msg_size=8)


def test_the_chunks_of_a_message_stay_or_go_together() -> None:
    stream = [chunk("a", "m1", 0, 2), chunk("a", "m2", 0, 2), chunk("a", "m1", 1, 2), chunk("a", "m2", 1, 2)]
    entries = placed([(0, entry) for entry in stream])
    assert compacted(entries) == [entries[1], entries[3]]


def test_chunks_whose_last_one_is_yet_to_come_stay() -> None:
    entries = placed([(0, chunk("a", "m1", 0, 2)), (0, single(Said("a", b"between"))), (0, chunk("a", "m1", 1, 2))])
    assert compacted(entries[:2]) == entries[:2]
    assert compacted(compacted(entries[:2]) + entries[2:]) == [entries[0], entries[2]]


def test_a_null_value_deletes_its_key() -> None:
    null = metadata(partition_key="a", null_value=True)
    assert compacted(placed([(0, single(Said("a", b"1"))), (0, framed(null, b""))])) == []


def test_a_long_key_takes_no_more_than_its_digest() -> None:
    both = Survivors(keeps_messages_without_key=False)
    both.note(Position(1, 0), single(Said("k" * 5000, b"1")))
    assert len(next(iter(both._last))) == survivors.MAX_KEY_BYTES + 1


def test_a_batch_is_opened_without_its_payloads_being_copied() -> None:
    content = read_entry(batch([Said("a", b"12"), Said(None, b"")]))
    assert isinstance(content, Batch)
    first = next(iter(content.messages))
    assert content.payload[first.start : first.end].endswith(b"12")
