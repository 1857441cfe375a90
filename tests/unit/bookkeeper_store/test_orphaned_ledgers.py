"""The periodic deletion: its errors, counts and leadership, on the model of bookies."""

from __future__ import annotations

import struct
from random import Random
from typing import cast

import pytest
from tests.support.bookkeeper_store_model import ModelCluster

from pybroker.bookkeeper_store.documents.ml_data_formats_pb2 import CompressionMetadata
from pybroker.bookkeeper_store.orphans.named_ledgers import NamedLedgers
from pybroker.bookkeeper_store.orphans.orphaned_ledgers import OrphanedLedgers
from pybroker.config import load
from pybroker.errors import StoreError
from pybroker.ledgers.ledger_properties import ClusterMark, managed_ledger_properties
from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.runtime.clock import Clock
from pybroker.runtime.runtime import Runtime
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.compression import compress

NAME = "public/default/persistent/t"
PATH = f"/managed-ledgers/{NAME}"
MARK = ClusterMark.of_age("c1", 60_000)


def compressed(kind: str, document: bytes) -> bytes:
    """Return the document as Java brokers write it, with `managedLedgerInfoCompressionType` and the key of cursors."""
    number = cast("pb.CompressionType", pb.CompressionType.Value(kind))
    head = CompressionMetadata(compression_type=number, uncompressed_size=len(document)).SerializeToString()
    return struct.pack(">HI", 0x4778, len(head)) + head + compress(number, document)


class EarlierClock(Clock):
    def wall_ms(self) -> int:
        return super().wall_ms() - 100_000


class World:
    """A cluster with three old ledgers."""

    def __init__(self) -> None:
        self.cluster = ModelCluster(Random(1))
        self.metadata = MemoryMetadataStore()
        self.leads = True
        values = {"clusterName": "c1", "orphanedLedgerMinAgeInSeconds": "60"}
        runtime = Runtime(load(None, {}, values).config)
        self.client = self.cluster.client()
        self.orphaned = OrphanedLedgers(self.client, self.metadata, runtime, self._is_leader)
        self.ids: list[int] = []

    async def _is_leader(self) -> bool:
        return self.leads

    async def create_ledgers(self) -> None:
        earlier = self.cluster.client(EarlierClock())
        for _ in range(3):
            writer = await earlier.create_ledger(managed_ledger_properties(MARK, NAME))
            self.ids.append(writer.ledger_id)
        await earlier.close()

    @property
    def left(self) -> list[int]:
        return sorted(self.cluster.metadata.ledgers)


async def test_unnamed_ledgers_are_deleted_and_counted() -> None:
    world = World()
    await world.create_ledgers()
    listed, cursor, _ = world.ids
    await world.metadata.put(PATH, b"\x0a\x02\x08" + bytes([listed]))
    await world.metadata.put(f"{PATH}/sub", b"\x08" + bytes([cursor]) + b"\x10\x01\x18\x02")
    await world.orphaned.run_once()
    assert world.left == [listed, cursor]
    figures = world.orphaned.figures()
    assert (figures["bookkeeper_orphan_runs"], figures["bookkeeper_orphans_deleted"]) == (1, 1)
    await world.client.close()


async def test_names_in_the_extras_count() -> None:
    world = World()
    await world.create_ledgers()
    first, second, third = world.ids
    extras = f'{{"version": 1, "last_ledger": 1, "trimmed": [{first}, {second}]}}'
    await world.metadata.put(f"/pybroker{PATH}", extras.encode())
    found: set[int] = set()
    await NamedLedgers(world.metadata).read(found.update)
    assert found == {first, second}
    await world.orphaned.run_once()
    assert world.left == [first, second]
    assert third not in world.left
    await world.client.close()


async def test_only_the_leader_deletes() -> None:
    world = World()
    await world.create_ledgers()
    world.leads = False
    await world.orphaned.run_once()
    assert world.left == world.ids
    world.leads = True
    await world.orphaned.run_once()
    assert not world.left
    await world.client.close()


@pytest.mark.parametrize("kind", ["LZ4", "ZLIB", "ZSTD", "SNAPPY"])
async def test_names_in_compressed_documents_of_java_brokers_count(kind: str) -> None:
    world = World()
    await world.create_ledgers()
    listed, cursor, _ = world.ids
    await world.metadata.put(PATH, compressed(kind, b"\x0a\x02\x08" + bytes([listed])))
    await world.metadata.put(f"{PATH}/sub", compressed(kind, b"\x08" + bytes([cursor]) + b"\x10\x01\x18\x02"))
    await world.orphaned.run_once()
    assert world.left == [listed, cursor]
    await world.client.close()


async def test_document_that_cannot_be_decompressed_stops_the_deletion() -> None:
    world = World()
    await world.create_ledgers()
    await world.metadata.put(PATH, compressed("ZLIB", b"\x0a\x02\x08" + bytes([world.ids[0]]))[:-8])
    await world.orphaned.run_once()
    assert world.left == world.ids
    assert PATH in (world.orphaned.failure or "")
    await world.client.close()


@pytest.mark.parametrize("error", [StoreError("unreachable"), RuntimeError("a bug")])
async def test_failed_search_deletes_nothing_and_is_shown(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    world = World()
    await world.create_ledgers()

    async def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(world.metadata, "children", fail)
        await world.orphaned.run_once()
    assert world.left == world.ids
    assert world.orphaned.failure == str(error)
    assert world.orphaned.figures()["bookkeeper_orphan_last_run_failed"] == 1
    await world.orphaned.run_once()
    assert not world.left
    figures = world.orphaned.figures()
    assert (figures["bookkeeper_orphan_last_run_failed"], figures["bookkeeper_orphan_runs_failed"]) == (0, 1)
    await world.client.close()


async def test_ledger_that_cannot_be_closed_is_kept() -> None:
    world = World()
    await world.create_ledgers()
    for bookie_id in world.cluster.network.bookies:
        world.cluster.network.kill(bookie_id)
    await world.orphaned.run_once()
    assert world.left == world.ids
    assert world.orphaned.figures()["bookkeeper_orphans_kept"] == 3
    world.cluster.network.repair()
    await world.orphaned.run_once()
    assert not world.left
    assert world.orphaned.figures()["bookkeeper_orphans_kept"] == 0
    await world.client.close()
