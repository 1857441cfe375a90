"""Rules of retention, message expiry and backlog quotas. Pure. Times are milliseconds since 1970."""

from __future__ import annotations

from pybroker.managed_ledger.ledger_list import LedgerList
from pybroker.managed_ledger.retention import UNLIMITED, RetentionLimits
from pybroker.model.policies import BacklogQuota, BacklogQuotaPolicy, RetentionPolicies
from pybroker.model.position import Position

EVICTION_TARGET = 0.9
"""Eviction reduces the backlog to this fraction of the limit, so that the next message does not exceed the limit again."""
UNKNOWN_AGE_S = -1
"""Age of a backlog that was not measured or does not exist."""

_MS_PER_MINUTE = 60_000
_BYTES_PER_MB = 1024 * 1024


def retention_limits(policies: RetentionPolicies) -> RetentionLimits:
    minutes, megabytes = policies.retentionTimeInMinutes, policies.retentionSizeInMB
    return RetentionLimits(
        UNLIMITED if minutes < 0 else minutes * _MS_PER_MINUTE,
        UNLIMITED if megabytes < 0 else megabytes * _BYTES_PER_MB,
    )


def retention_refusal(policies: RetentionPolicies) -> str:
    """Return why the two retention limits contradict each other, or an empty text."""
    minutes, megabytes = policies.retentionTimeInMinutes, policies.retentionSizeInMB
    if minutes < UNLIMITED:
        return "Invalid retention policy: time limit must be >= -1"
    if megabytes < UNLIMITED:
        return "Invalid retention policy: size limit must be >= -1"
    if (minutes == 0) != (megabytes == 0):
        return (
            "Invalid retention policy: Setting a single time or size limit to 0 is invalid when one of the limits has a non-zero "
            "value. Use the value of -1 instead of 0 to ignore a specific limit. To disable retention both limits must be set to 0."
        )
    return ""


def is_quota_above_retention(quota: BacklogQuota | None, retention: RetentionPolicies | None) -> bool:
    """Return whether the backlog quota exceeds the retention size, which would make the retention size ineffective."""
    if quota is None or retention is None:
        return False
    limits = retention_limits(retention)
    is_above_size = 0 < limits.size_bytes <= quota.limitSize
    return is_above_size or 0 < limits.time_ms <= quota.limitTime * 1000


def is_size_exceeded(quota: BacklogQuota, backlog_bytes: int) -> bool:
    """Return whether the size quota is exceeded. A limit of 0 is always exceeded."""
    return 0 <= quota.limitSize <= backlog_bytes


def is_age_exceeded(quota: BacklogQuota, oldest_ms: int | None, now_ms: int) -> bool:
    """Return whether the age quota is exceeded. `oldest_ms`: publish time of the oldest unacknowledged message; None if
    unknown, and the result is then False.
    """
    return quota.limitTime > 0 and oldest_ms is not None and now_ms > oldest_ms + quota.limitTime * 1000


def blocks_producers(quota: BacklogQuota) -> bool:
    return quota.policy in {BacklogQuotaPolicy.HOLD, BacklogQuotaPolicy.FAIL}


def entries_to_evict(backlog_bytes: int, limit_bytes: int, backlog_entries: int) -> int:
    """Return how many of the oldest entries a subscription must skip, assuming entries of equal size; at least 1 while
    the limit is exceeded.
    """
    target_bytes = EVICTION_TARGET * limit_bytes
    if backlog_bytes <= target_bytes:
        return 0
    count = int(backlog_entries * (backlog_bytes - target_bytes) / backlog_bytes)
    return max(count, 1 if backlog_bytes >= limit_bytes else 0)


def eviction_deadline_ms(quota: BacklogQuota, now_ms: int) -> int:
    """Return the publish time, in milliseconds since 1970, before which messages are evicted."""
    return now_ms - int(quota.limitTime * 1000 * EVICTION_TARGET)


def closed_ms_of_oldest(ledgers: LedgerList, mark_delete: Position) -> int | None:
    """Return when the ledger of the first entry after `mark_delete` was closed; None without such an entry, or if the
    ledger is open.
    """
    first = ledgers.next_position(mark_delete)
    row = ledgers.row_of(first.ledger_id)
    if row is None or not row.is_sealed or not ledgers.has_entry(first):
        return None
    return row.closed_ms


def end_of_ledgers_closed_before(ledgers: LedgerList, mark_delete: Position, deadline_ms: int) -> Position | None:
    """Return the last entry after `mark_delete` in the ledgers that were closed before `deadline_ms`; None if there is
    no such entry.
    """
    end: Position | None = None
    first = ledgers.next_position(mark_delete)
    for row in ledgers.rows():
        if row.ledger_id < first.ledger_id or not row.entry_count:
            continue
        if not row.is_sealed or row.closed_ms >= deadline_ms:
            break
        end = Position(row.ledger_id, row.entry_count - 1)
    return end if end is not None and end > mark_delete else None


def estimated_bytes_behind(ledgers: LedgerList, mark_delete: Position) -> int:
    """Estimate the size in bytes of the entries after `mark_delete` from the average entry size, without reading
    entries.
    """
    row = ledgers.row_of(mark_delete.ledger_id)
    behind_bytes = ledgers.totals_behind(mark_delete.ledger_id).size_bytes
    if row is None or not row.entry_count:
        return behind_bytes
    return behind_bytes + row.size_bytes * (row.entry_count - 1 - mark_delete.entry_id) // row.entry_count
