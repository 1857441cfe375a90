"""Limits and timeouts of the client. Names such as managedLedgerDigestType are keys of Pulsar's broker.conf with the
same meaning.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pybroker.bookkeeper.protocol.entry_format import DigestType
from pybroker.bookkeeper.quorums import Quorums

_MIB = 1024 * 1024
NO_LIMIT = 1 << 62
"""The value of a limit that is not checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BookKeeperOptions:
    """Options of one client. All times are in milliseconds."""

    quorums: Quorums = field(default_factory=lambda: Quorums(2, 2, 2))
    """managedLedgerDefaultEnsembleSize, managedLedgerDefaultWriteQuorum, managedLedgerDefaultAckQuorum."""
    digest_type: DigestType = DigestType.CRC32C
    """managedLedgerDigestType."""
    password: bytes = b""
    """managedLedgerPassword."""
    connect_timeout_ms: float = 10_000
    add_timeout_ms: float = 5_000
    """A bookie that does not answer an add within this time is replaced (bookkeeperClientTimeoutInSeconds)."""
    read_timeout_ms: float = 5_000
    """A bookie that does not answer a read within this time is skipped (bookkeeperClientTimeoutInSeconds)."""
    append_timeout_ms: float = 30_000
    """An entry that is not confirmed within this time, over all bookies that are tried, ends the writer."""
    metadata_timeout_ms: float = 30_000
    """How long a change of a ledger's metadata is repeated, in milliseconds."""
    metadata_retry_ms: float = 100
    reconnect_ms: float = 200
    max_change_pause_ms: float = 3_000
    """The longest pause between two changes of an ensemble without a confirmed entry in between."""
    """For this time after a failed connection, requests to the bookie fail at once."""
    quarantine_failures: int = 5
    """bookkeeperClientHealthCheckErrorThresholdPerInterval."""
    quarantine_interval_ms: float = 60_000
    """bookkeeperClientHealthCheckIntervalSeconds."""
    quarantine_ms: float = 1_800_000
    """bookkeeperClientQuarantineTimeInSeconds."""
    max_frame_bytes: int = 5 * _MIB + 10 * 1024
    """Largest request and response; not more than the bookies' nettyMaxFrameSizeBytes."""
    max_pending_entries: int = 10_000
    """Maximum number of unconfirmed entries of one writer. Further entries are refused."""
    max_pending_bytes: int = 64 * _MIB
    """Maximum payload bytes of the unconfirmed entries of one writer. Further entries are refused."""
    max_bookie_bytes: int = 64 * _MIB
    """Maximum unanswered bytes of one bookie, over all writers. Above it, appends that need the bookie are refused."""
    max_concurrent_reads: int = 64
    """Maximum number of single-entry reads in flight of one read call."""
    max_concurrent_recovery_reads: int = 16
    """Maximum number of entries that a recovery reads ahead."""
    use_batch_reads: bool = True
    """bookkeeperEnableBatchRead. Only ledgers whose write quorum is their ensemble are read in batches."""
    max_batch_bytes: int = 4 * _MIB
    max_batch_entries: int = 1_000
