"""Several owners of one managed ledger info, on a metadata store that fails before or after a put, or stores it late.

Invariants, with any fault: an owner's put never follows a value that another owner wrote after the first one had read;
a save that returns has stored its state, and no older state of that owner replaces it; a fenced owner has really lost
the value, and is notified once; without a fault, and without another owner, a save does not fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import msgspec
from tests.support.world import AsyncWorld

from pybroker.errors import BadVersionError, LedgerFenced, StoreError
from pybroker.managed_ledger.info.json_records import JsonRecord
from pybroker.managed_ledger.ledger_list import LedgerList
from pybroker.managed_ledger.stored_info import StoredInfo
from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.metadata.metadata_store import ANY_VERSION, Versioned

PATH = "/managed-ledgers/t/n/persistent/x"
STEPS = ("save", "save", "save", "save twice", "open", "come late", "somebody writes", "somebody deletes")
FAULTS = ("", "", "", "before", "after", "late", "cancelled", "retried by the store", "no answer to a get")

Step = tuple[str, int, str]
"""The operation, the owner, and the behaviour of the store."""


@dataclass
class Put:
    """A put that an owner has requested."""

    author: int
    number: int
    value: bytes
    expected: int


@dataclass
class Owner:
    author: int
    document: StoredInfo
    found: bytes | None
    """The value at its start."""
    fenced: list[LedgerFenced] = field(default_factory=list)
    saved_number: int = -1
    """The put of the last save that returned."""


class CheckedMetadata(MemoryMetadataStore):
    """A metadata store with faults, which asserts that no put replaces the value of another owner or a newer one."""

    def __init__(self) -> None:
        super().__init__()
        self.owners: list[Owner] = []
        self.author: dict[bytes, int] = {}
        self.puts = 0
        self.late: list[Put] = []
        self.fault = ""
        self.has_failed = False

    async def get(self, path: str) -> Versioned | None:
        if self.fault == "no answer to a get":
            self.has_failed = True
            raise StoreError("no answer")
        return await super().get(path)

    async def put(self, path: str, value: bytes, expected_version: int = ANY_VERSION) -> int:
        put = Put(self.author[_owner_mark(value)], self.puts, value, expected_version)
        self.puts += 1
        fault, self.fault = self.fault, ""
        await asyncio.sleep(0)
        if fault in {"", "no answer to a get"}:
            return await self.apply(put)
        self.has_failed = True
        if fault == "late":
            self.late.append(put)
        elif fault != "before":
            await self.apply(put)
        if fault == "cancelled":
            raise asyncio.CancelledError
        if fault == "retried by the store":
            raise BadVersionError("it has another version")
        raise StoreError("no answer")

    async def apply(self, put: Put) -> int:
        before = await super().get(PATH)
        version = await super().put(PATH, put.value, put.expected)
        owner = self.owners[put.author]
        value = None if before is None else before.value
        is_own = value is not None and self.author.get(_owner_mark(value)) == put.author
        assert is_own or value == owner.found, "what another owner wrote is written over"
        assert before is None or put.number > owner.saved_number, "an older state comes over a newer one"
        return version

    async def found(self) -> Versioned | None:
        """The document as it is stored, without a fault."""
        return await super().get(PATH)

    async def write(self, value: bytes) -> None:
        """Store `value` for a writer that is no owner."""
        await super().put(PATH, value)


class StoredInfoWorld(AsyncWorld):
    """Owners of one document, and other writers."""

    def __init__(self) -> None:
        self.store = CheckedMetadata()
        self.owners = self.store.owners
        self.is_deleted = False
        """No owner begins from then on."""
        self.is_over = False
        """After one step on the deleted document the versions would begin again."""

    async def perform(self, kind: str, which: int, fault: str) -> None:
        if self.is_over:
            return
        self.is_over = self.is_deleted
        store = self.store
        if not self.owners or (kind == "open" and not self.is_deleted):
            found = await store.found()
            ledgers, author = LedgerList(), len(self.owners)
            ledgers.add_ledger(author)
            document = StoredInfo(JsonRecord(store, PATH, found), ledgers)
            owner = Owner(author, document, None if found is None else found.value)
            document.when_fenced = owner.fenced.append
            self.owners.append(owner)
            store.author[_owner_mark(encoded(document))] = author
        elif kind == "come late":
            if store.late:
                try:
                    await store.apply(store.late.pop(which % len(store.late)))
                except BadVersionError:
                    return
        elif kind == "somebody writes":
            found = await store.found()
            if found is not None or not self.is_deleted:
                await store.write(b"x" if found is None else found.value + b" ")
        elif kind == "somebody deletes":
            await store.delete(PATH)
            self.is_deleted = True
        else:
            owner = self.owners[which % len(self.owners)]
            await self._save(owner, which, fault, 2 if kind == "save twice" else 1)

    async def _save(self, owner: Owner, which: int, fault: str, times: int) -> None:
        document, store = owner.document, self.store
        store.fault, store.has_failed = fault, False

        async def save(state: int) -> None:
            # States occur again, as after a change that is undone because it could not be stored.
            document.properties["state"] = str(state)
            await document.save()

        outcomes = await asyncio.gather(*(save((which + i) % 3) for i in range(times)), return_exceptions=True)
        store.fault = ""
        found = await store.found()
        for outcome in outcomes:
            if isinstance(outcome, LedgerFenced):
                assert document.is_fenced
                is_own = found is not None and store.author.get(_owner_mark(found.value)) == owner.author
                is_theirs = found is None or not is_own or found.value[-1:] == b" "
                assert is_theirs or self.is_deleted, "fenced, and nobody else wrote"
            elif isinstance(outcome, StoreError | asyncio.CancelledError):
                assert store.has_failed, "a save fails without a reason"
            else:
                assert outcome is None, outcome
        if outcomes[-1] is None:
            assert not document.is_fenced
            assert found is not None
            assert (found.value, found.version) == (encoded(document), document.version), "not what was to be saved"
            owner.saved_number = store.puts - 1
        assert len(owner.fenced) == document.is_fenced, "told once"


def _owner_mark(value: bytes) -> bytes:
    """Return the list of ledgers, which begins with one of the owner's own."""
    return value[: value.index(b"cursors")] if b"cursors" in value else value


def run_script(steps: Sequence[Step]) -> None:
    asyncio.run(StoredInfoWorld().play(steps))


def draw_script(seed: int, length: int) -> list[Step]:
    chance = Random(seed)
    return [(chance.choice(STEPS), chance.randrange(6), chance.choice(FAULTS)) for _ in range(length)]


def encoded(document: StoredInfo) -> bytes:
    return msgspec.json.encode(document.info())
