"""Ledgers that are exchanged with the Java client: written by one, read, recovered and fenced by the other."""

from __future__ import annotations

import asyncio

import pytest
import uvloop
from tests.bookkeeper.conftest import connected
from tests.support.bookkeeper_cluster import BookKeeperCluster

from pybroker.bookkeeper import BookKeeperOptions, DigestType, LedgerState, LedgerWriter, Quorums
from pybroker.bookkeeper.errors import AppendUnknown, LedgerFenced, NoSuchEntry, NoSuchLedger, WrongKey
from pybroker.bookkeeper.protocol.entry_format import EntryFormat
from pybroker.bookkeeper.zookeeper_metadata import ZooKeeperLedgerMetadata

KINDS = (
    (Quorums(3, 2, 2), DigestType.CRC32C, b""),
    (Quorums(3, 3, 2), DigestType.CRC32, b"secret"),
    (Quorums(1, 1, 1), DigestType.HMAC, b"secret"),
    (Quorums(2, 2, 1), DigestType.DUMMY, b""),
)
JAVA_DIGESTS = {DigestType.HMAC: "MAC"}


def _options(kind: tuple[Quorums, DigestType, bytes]) -> BookKeeperOptions:
    quorums, digest_type, password = kind
    return BookKeeperOptions(quorums=quorums, digest_type=digest_type, password=password)


async def _require_fenced(writer: LedgerWriter) -> None:
    """The entry is unknown if some bookie had not answered when the first one refused it."""
    with pytest.raises((LedgerFenced, AppendUnknown)):
        await writer.add(b"late")
    assert isinstance(writer.error, LedgerFenced)
    with pytest.raises(LedgerFenced):
        writer.append(b"later")


def _digest(digest_type: DigestType) -> str:
    return JAVA_DIGESTS.get(digest_type, digest_type.name)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind[1].name)
async def test_own_ledgers_are_read_and_recovered_by_java(
    cluster: BookKeeperCluster, kind: tuple[Quorums, DigestType, bytes]
) -> None:
    async with connected(cluster, _options(kind)) as client:
        payloads = [b"entry %d" % each for each in range(50)]
        closed = await client.create_ledger({"application": b"pulsar"})
        await asyncio.gather(*(closed.add(each) for each in payloads))
        metadata = await client.close_ledger(closed)
        assert (metadata.last_entry_id, metadata.length_bytes) == (49, sum(map(len, payloads)))
        open_ = await client.create_ledger()
        await asyncio.gather(*(open_.add(each) for each in payloads))
        for writer in (closed, open_):
            arguments = ("read", str(writer.ledger_id), _digest(kind[1]), kind[2].decode())
            length, *entries = await asyncio.to_thread(cluster.exchange, *arguments)
            assert (int(length), entries) == (metadata.length_bytes, [each.decode() for each in payloads])
        await _require_fenced(open_)  # by Java's recovery
        decided = await client.close_ledger(open_)
        assert (decided.state, decided.last_entry_id) == (LedgerState.CLOSED, 49)


@pytest.mark.parametrize("end", ["close", "open"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind[1].name)
async def test_ledgers_of_java_are_read_and_recovered(
    cluster: BookKeeperCluster, kind: tuple[Quorums, DigestType, bytes], end: str
) -> None:
    quorums, digest_type, password = kind
    sizes = (str(each) for each in (quorums.ensemble_size, quorums.write_quorum, quorums.ack_quorum))
    arguments = ("write", "40", *sizes, _digest(digest_type), password.decode(), end)
    (ledger_id,) = await asyncio.to_thread(cluster.exchange, *arguments)
    async with connected(cluster, _options(kind)) as client:
        reader = await client.open_ledger(int(ledger_id))
        assert await reader.read_last_confirmed() == (39 if end == "close" else 38)
        reader = await client.recover_ledger(int(ledger_id))
        entries = [each async for each in reader.entries(0, 100)]
        assert [each.payload for each in entries] == [b"java %d" % each for each in range(40)]
        assert reader.metadata.length_bytes == entries[-1].length_bytes
        with pytest.raises(NoSuchEntry):
            await reader.read(40, 1, 1)
        with pytest.raises(WrongKey):
            await client.recover_ledger(int(ledger_id), b"other")


async def test_ledger_is_listed_until_deleted(cluster: BookKeeperCluster) -> None:
    async with connected(cluster, _options(KINDS[0])) as client:
        writer = await client.create_ledger()
        assert writer.ledger_id in await client.list_ledgers()
        await client.close_ledger(writer)
        await client.delete_ledger(writer.ledger_id)
        assert writer.ledger_id not in await client.list_ledgers()
        with pytest.raises(NoSuchLedger):
            await client.open_ledger(writer.ledger_id)


@pytest.mark.parametrize("use_batch_reads", [False, True])
async def test_second_client_fences_the_writer(cluster: BookKeeperCluster, use_batch_reads: bool) -> None:
    options = BookKeeperOptions(quorums=Quorums(3, 3, 2), use_batch_reads=use_batch_reads)
    async with connected(cluster, options) as first, connected(cluster, options) as second:
        writer = await first.create_ledger()
        payloads = [b"x" * each for each in range(200)]
        await asyncio.gather(*(writer.add(each) for each in payloads))
        reader = await second.recover_ledger(writer.ledger_id)
        read: list[bytes] = []
        while len(read) < 200:
            read += [each.payload for each in await reader.read(len(read), 64, 100_000)]
        assert read == payloads
        if use_batch_reads:
            assert not reader._without_batches, "bookies answer batch reads"
        await _require_fenced(writer)


async def test_ids_rise_and_are_never_used_again(cluster: BookKeeperCluster) -> None:
    async with connected(cluster, _options(KINDS[0])) as first, connected(cluster, _options(KINDS[0])) as second:
        last = -1
        for client in (first, second, first):
            writer = await client.create_ledger()
            assert writer.ledger_id > last
            last = writer.ledger_id
            await client.close_ledger(writer)
            await client.delete_ledger(last)
        store = first._store
        assert isinstance(store, ZooKeeperLedgerMetadata)
        counter = await store._client.exists("/ledgers/idgen")
        assert counter is not None
        assert counter.ephemeral_owner == 0, "a container is deleted without children, and would count from 0 again"


def test_client_works_on_uvloop(cluster: BookKeeperCluster) -> None:
    async def exchange() -> list[bytes]:
        async with connected(cluster, _options(KINDS[0])) as client:
            writer = await client.create_ledger()
            await writer.add(b"one")
            await writer.add(b"two")
            assert (await client.bookie_space(writer.ensemble[0])).total_bytes > 0
            reader = await client.recover_ledger(writer.ledger_id)
            return [each.payload for each in await reader.read(0, 10, 1000)]

    assert uvloop.run(exchange()) == [b"one", b"two"]


async def test_operations_of_version_3(cluster: BookKeeperCluster) -> None:
    async with connected(cluster, _options(KINDS[0])) as client:
        writer = await client.create_ledger()
        for each in range(10):
            await writer.add(b"%d" % each)
        bookie_id = writer.ensemble[0]
        space = await client.bookie_space(bookie_id)
        assert 0 < space.free_bytes <= space.total_bytes
        async with client.pool.connected_v3(bookie_id) as connection:
            await connection.force(writer.ledger_id)
            found = await connection.read_lac(writer.ledger_id)
            format_ = EntryFormat(writer.ledger_id, DigestType.CRC32C, b"")
            assert format_.unpack(found.last_entry, None).entry_id in {8, 9}
            await connection.write_lac(writer.ledger_id, 9, format_.master_key, format_.pack_last_confirmed(9))
            record = (await connection.read_lac(writer.ledger_id)).record
            assert format_.unpack_last_confirmed(record) == 9
            with pytest.raises(NoSuchEntry):
                await connection.read_lac(1 << 40)
