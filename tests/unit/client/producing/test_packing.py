"""Consumers unpack the entries of producers: batches, single messages, chunks. Damaged entries are refused."""

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st
from tests.support.credentials import private_pem, public_pem, rsa_key

from pybroker.client.consuming import unpacking
from pybroker.client.consuming.unpacking import ChunkedMessages, EncryptedMessage, unpack
from pybroker.client.frames import ReceivedEntry
from pybroker.client.message import Encryption, EncryptionKey, Message, OutgoingMessage
from pybroker.client.producing.packing import PackedEntry, Packing, pack_batch, pack_chunks, pack_large, pack_one
from pybroker.encryption.crypto_key_reader import PublicKey
from pybroker.encryption.payload_encryption import Decryptor, PayloadEncryptor
from pybroker.model.txn_id import TxnId
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.compression import DamagedPayload
from pybroker.wire.entry_builder import framed
from pybroker.wire.entry_metadata import message_metadata

TOPIC = "persistent://a/b/c"
codecs = st.sampled_from([pb.NONE, pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY])
texts = st.text(max_size=5)
messages = st.builds(
    OutgoingMessage,
    st.none() | st.binary(max_size=40),
    st.none() | texts,
    st.booleans(),
    st.none() | st.binary(max_size=4),
    st.dictionaries(texts, texts, max_size=2),
    st.integers(0, 1 << 50),
    st.just(0),
    st.none(),
    st.just(()),
    st.none(),
)


def received(entry: PackedEntry, entry_id: int = 3, ack_set: tuple[int, ...] = ()) -> ReceivedEntry:
    return ReceivedEntry(0, 9, entry_id, 2, entry.data, ack_set)


def shown(message: Message | OutgoingMessage) -> tuple[object, ...]:
    return message.value, message.key, message.ordering_key, dict(message.properties), message.event_time_ms


@given(st.lists(messages, min_size=1, max_size=5), codecs, st.none() | st.just(TxnId(3, 9)))
def test_a_batch_holds_its_messages(sent: list[OutgoingMessage], codec: pb.CompressionType, txn: TxnId | None) -> None:
    entry = pack_batch(Packing("p", codec, b"v"), sent, range(5, 5 + len(sent)), 77, txn)
    found = unpack(received(entry), TOPIC, 4, ChunkedMessages())
    assert [shown(message) for message in found.messages] == [shown(message) for message in sent]
    assert [message.id for message in found.messages] == [
        (9, 3, 4, index, len(sent), None) for index in range(len(sent))
    ]
    assert [message.sequence_id for message in found.messages] == [*range(5, 5 + len(sent))]
    assert {
        (message.publish_time_ms, message.schema_version, message.redelivery_count) for message in found.messages
    } == {(77, b"v", 2)}
    assert (entry.sequence_id, entry.highest_sequence_id, entry.message_count) == (5, 4 + len(sent), len(sent))
    metadata = message_metadata(entry.data)
    assert metadata.HasField("txnid_least_bits") == (txn is not None)


@given(messages, codecs)
def test_a_message_alone_is_no_batch(sent: OutgoingMessage, codec: pb.CompressionType) -> None:
    entry = pack_one(Packing("p", codec), sent, 5, 77)
    found = unpack(received(entry), TOPIC, -1, ChunkedMessages())
    assert [shown(message) for message in found.messages] == [shown(sent)]
    assert found.messages[0].id == (9, 3, -1, -1, 0, None)


def test_encrypted_message_is_sent_and_received_as_it_is() -> None:
    keys = (EncryptionKey("k", b"\x01", {"a": "b"}),)
    encryption = Encryption(keys, b"iv", "AES", pb.LZ4, 100)
    sent = OutgoingMessage(b"secret", "key", encryption=encryption)
    entry = received(pack_one(Packing("p", pb.ZSTD), sent, 5, 77))
    (message,) = unpack(entry, TOPIC, -1, ChunkedMessages(), takes_encrypted=True).messages
    assert (message.value, message.key, message.encryption) == (b"secret", "key", encryption)
    with pytest.raises(EncryptedMessage):
        unpack(entry, TOPIC, -1, ChunkedMessages())


@given(st.binary(min_size=1, max_size=300), codecs, st.integers(1, 50))
def test_parts_come_together_again(value: bytes, codec: pb.CompressionType, most: int) -> None:
    entries = [*pack_chunks(Packing("p", codec), OutgoingMessage(value, "k"), 5, 77, most)]
    chunked = ChunkedMessages()
    if len(entries) == 1:
        return
    *before, last = [unpack(received(entry, number), TOPIC, -1, chunked) for number, entry in enumerate(entries)]
    assert not any(found.messages for found in before)
    assert last.messages[0].value == value
    assert last.messages[0].id.first_chunk == (9, 0)
    assert last.chunk_entries == [(9, number) for number in range(len(entries))]
    assert not len(chunked)


def test_messages_that_were_acknowledged_before_are_left_out() -> None:
    entry = pack_batch(Packing("p"), [OutgoingMessage(b"%d" % index) for index in range(70)], range(70), 1, None)
    bits = (1 << 69) | (1 << 2)
    found = unpack(received(entry, ack_set=(bits & (1 << 64) - 1, bits >> 64)), TOPIC, -1, ChunkedMessages())
    assert [message.value for message in found.messages] == [b"2", b"69"]
    assert found.permits == 70


def test_parts_of_many_messages_that_never_end_are_given_up() -> None:
    chunked = ChunkedMessages(max_messages=3)
    for number in range(10):
        packing = Packing(f"p{number}")
        first = next(pack_chunks(packing, OutgoingMessage(b"x" * 100), 1, 1, 10))
        unpack(received(first), TOPIC, -1, chunked)
    assert len(chunked) == 3
    assert chunked.given_up_count == 7


def test_a_part_that_does_not_follow_makes_no_message() -> None:
    entries = [*pack_chunks(Packing("p"), OutgoingMessage(b"x" * 100), 1, 1, 40)]
    chunked = ChunkedMessages()
    for entry in (entries[0], entries[2], entries[2]):
        assert not unpack(received(entry), TOPIC, -1, chunked).messages
    # The first chunk starts the message anew.
    assert [len(unpack(received(entry), TOPIC, -1, chunked).messages) for entry in entries] == [0, 0, 1]


@pytest.mark.parametrize(
    "metadata",
    [
        pb.MessageMetadata(num_messages_in_batch=1_000_000_000),
        pb.MessageMetadata(num_messages_in_batch=2),
        pb.MessageMetadata(compression=pb.LZ4, uncompressed_size=(1 << 32) - 1),
        pb.MessageMetadata(uuid="u", num_chunks_from_msg=2, total_chunk_msg_size=-1),
    ],
)
def test_what_is_damaged_is_refused_at_once(metadata: pb.MessageMetadata) -> None:
    metadata.producer_name, metadata.sequence_id, metadata.publish_time = "p", 1, 1
    entry = ReceivedEntry(0, 9, 3, 0, framed(metadata, b"\xff" * 30))
    with pytest.raises(DamagedPayload):
        unpack(entry, TOPIC, -1, ChunkedMessages())


def test_what_comes_to_more_than_a_message_may_be_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "MAX_MESSAGE_BYTES", 1000)
    for size, is_opened in ((1000, True), (1001, False)):
        entry = pack_one(Packing("p", pb.ZSTD), OutgoingMessage(bytes(size)), 1, 1).data
        received = ReceivedEntry(0, 9, 3, 0, entry)
        if is_opened:
            assert unpack(received, TOPIC, -1, ChunkedMessages()).messages[0].value == bytes(size)
        else:
            with pytest.raises(DamagedPayload, match="accepts at most 1000 bytes"):
                unpack(received, TOPIC, -1, ChunkedMessages())


def test_what_is_encrypted_is_said_to_be() -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    metadata.encryption_keys.add(key="k", value=b"v")
    with pytest.raises(EncryptedMessage, match="no private key"):
        unpack(ReceivedEntry(0, 9, 3, 0, framed(metadata, b"x")), TOPIC, -1, ChunkedMessages())


# --- encryption by the client


DECRYPTOR = Decryptor(lambda name, _: private_pem(rsa_key()) if name == "k" else None)


def data_keys(entry: PackedEntry) -> list[AESGCM]:
    (key,) = message_metadata(entry.data).encryption_keys
    found = DECRYPTOR.open(key)
    assert found is not None
    return [found]


def encrypting(codec: pb.CompressionType = pb.NONE) -> Packing:
    return Packing("p", codec, encryptor=PayloadEncryptor({"k": PublicKey(public_pem(rsa_key()))}))


@given(st.lists(messages, min_size=1, max_size=3), codecs)
def test_encrypted_batch_holds_its_messages(sent: list[OutgoingMessage], codec: pb.CompressionType) -> None:
    entry = pack_batch(encrypting(codec), sent, range(len(sent)), 77, None)
    found = unpack(received(entry), TOPIC, 4, ChunkedMessages(), data_keys=data_keys(entry))
    assert [shown(message) for message in found.messages] == [shown(message) for message in sent]
    for each in found.messages:
        assert each.encryption is not None
        assert (each.encryption.is_decrypted, each.encryption.batch_size) == (True, len(sent))


@given(messages, codecs)
def test_encrypted_message_is_unreadable_without_data_key(sent: OutgoingMessage, codec: pb.CompressionType) -> None:
    entry = pack_one(encrypting(codec), sent, 3, 77)
    (found,) = unpack(received(entry), TOPIC, 4, ChunkedMessages(), data_keys=data_keys(entry)).messages
    assert shown(found) == shown(sent)
    other = data_keys(pack_one(encrypting(), sent, 3, 77))
    for keys in ([], other):
        with pytest.raises(EncryptedMessage):
            unpack(received(entry), TOPIC, 4, ChunkedMessages(), data_keys=keys)
    (as_it_is,) = unpack(received(entry), TOPIC, 4, ChunkedMessages(), takes_encrypted=True, data_keys=other).messages
    assert as_it_is.encryption is not None
    assert not as_it_is.encryption.is_decrypted


def test_each_chunk_is_encrypted_and_fits() -> None:
    sent = OutgoingMessage(bytes(range(256)) * 40, properties={"a": "b"})
    entries = list(pack_large(encrypting(), sent, 3, 77, 2000))
    assert len(entries) > 5
    assert max(len(each.data) for each in entries) <= 2000
    chunked, found = ChunkedMessages(), []
    for number, each in enumerate(entries):
        assert b"\x00\x01\x02\x03" not in each.data
        found += unpack(received(each, number), TOPIC, 4, chunked, data_keys=data_keys(each)).messages
    assert [shown(message) for message in found] == [shown(sent)]


def test_message_that_is_encrypted_already_is_not_encrypted_again() -> None:
    encryption = Encryption((EncryptionKey("own", b"key"),), b"nonce")
    entry = pack_one(encrypting(), OutgoingMessage(b"sealed", encryption=encryption), 3, 77)
    (found,) = unpack(received(entry), TOPIC, 4, ChunkedMessages(), takes_encrypted=True).messages
    assert (found.value, found.encryption) == (b"sealed", encryption)
