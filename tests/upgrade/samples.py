"""Sample data directories of earlier commits: where they are stored, and what a later broker must find in them.

Each sample has two archives of the same broker: after a clean stop, and after more traffic and `kill -9`. The JSON file beside an
archive is a `Promised`: everything that clients were told when the archive was made. `python -m tests.upgrade.make_samples` makes
the samples; `test_samples.py` opens them with the current broker.
"""

from __future__ import annotations

import tarfile
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

SAMPLES = Path(__file__).resolve().parents[1] / "data" / "samples"
STATES = STOPPED, KILLED = ("stopped", "killed")
SETTINGS = {
    "acknowledgmentAtBatchIndexLevelEnabled": "true",
    "defaultRetentionSizeInMB": "-1",
    "defaultRetentionTimeInMinutes": "-1",
    "journalFileSizeMB": "1",
    "managedLedgerMaxEntriesPerLedger": "20",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "maxMessageSize": "20000",
    "storageReserveMB": "1",
    "transactionBufferSnapshotMaxTransactionCount": "2",
    "transactionBufferSnapshotMinTimeInMillis": "100",
}
"""The settings of the broker that makes a sample and of the broker that opens it."""
OWNER_ONLY = 0o700
_MAX_TEXT_LENGTH = 60


class Feature(StrEnum):
    """Content of a sample that not every commit can create."""

    CHANGED_DELIVERY = "changed-delivery"
    COMPACTION = "compaction"
    DEDUPLICATION = "deduplication"
    SCHEMAS = "schemas"
    TRANSACTIONS = "transactions"


class SampleSource(msgspec.Struct, frozen=True):
    """The commit that makes a sample."""

    commit: str
    reason: str
    features: frozenset[Feature]


_STORED = frozenset({Feature.SCHEMAS, Feature.DEDUPLICATION, Feature.COMPACTION})
SOURCES = {
    "01-policies": SampleSource("61e451ae", "store and metadata of version 1, before schemas", frozenset()),
    "02-compaction": SampleSource("e1fcefe8", "the last store and metadata of version 1", _STORED),
    "03-checksums": SampleSource("bc546df9", "store and metadata of version 2, journal.end", _STORED),
    "04-transactions": SampleSource(
        "605a541b",
        "cursors of version 2, transaction logs and delayed indexes of version 1",
        _STORED | {Feature.TRANSACTIONS},
    ),
    "05-backup": SampleSource("6e9e573a", "delayed indexes and transaction logs of version 2", frozenset(Feature)),
}
"""The samples, from the oldest to the newest."""


class StoredMessage(msgspec.Struct, frozen=True):
    """A message that a reader receives."""

    id: str
    """Ledger id, entry id and batch index."""
    text: str


class Subscription(msgspec.Struct):
    """The messages that a subscription has not acknowledged."""

    topic: str
    name: str
    is_shared: bool
    left: list[str] = []
    """The texts of messages that consumers receive; in this order if the subscription is not shared."""
    delayed: list[str] = []
    """The texts of messages that are due in the distant future."""
    backlog: int | None = None
    """`msgBacklog` of its stats; None if it was not recorded."""


class Promised(msgspec.Struct):
    """What clients were told."""

    commit: str
    features: list[Feature]
    messages: dict[str, list[StoredMessage]] = {}
    """By topic or partition, in the order of a reader from the earliest message."""
    subscriptions: list[Subscription] = []
    answers: dict[str, Any] = {}
    """The answers of REST, by path."""
    compacted: dict[str, list[tuple[str, str]]] = {}
    """Key and text of the messages that a reader of the compacted topic receives."""
    sequence_ids: dict[str, int] = {}
    """The last sequence id of the producer `fixed`, by topic with deduplication."""

    def subscription(self, topic: str, name: str, *, is_shared: bool = True) -> Subscription:
        for each in self.subscriptions:
            if (each.topic, each.name) == (topic, name):
                return each
        self.subscriptions.append(Subscription(topic, name, is_shared))
        return self.subscriptions[-1]


def text_of(payload: bytes) -> str:
    """Return the payload, or its digest if it is long."""
    if len(payload) <= _MAX_TEXT_LENGTH:
        return payload.decode()
    return f"sha256 {sha256(payload).hexdigest()}"


def save(promised: Promised, name: str, state: str) -> None:
    (SAMPLES / name).mkdir(parents=True, exist_ok=True)
    (SAMPLES / name / f"{state}.json").write_bytes(msgspec.json.encode(promised, order="deterministic") + b"\n")


def load(name: str, state: str) -> Promised:
    return msgspec.json.decode((SAMPLES / name / f"{state}.json").read_bytes(), type=Promised)


def unpack(name: str, state: str, target: Path) -> None:
    """Unpack the data directory of a sample; `target` is new."""
    target.mkdir(OWNER_ONLY)
    with tarfile.open(SAMPLES / name / f"{state}.tar.xz") as archive:
        archive.extractall(target, filter="data")
