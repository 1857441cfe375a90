"""What requests may set policies to: the checks that namespaces and topics share, with Pulsar's status codes.

Raises AdminError. Whether two policies fit each other is checked where both are at hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.broker.backlog import retention_refusal
from pybroker.errors import AdminError
from pybroker.model.policies import (
    BacklogQuota,
    BacklogQuotaPolicy,
    BacklogQuotaType,
    RetentionPolicies,
)

if TYPE_CHECKING:
    from pybroker.admin.call import Call

MAX_SIGNED_32 = (1 << 31) - 1


def checked_retention(retention: RetentionPolicies | None) -> RetentionPolicies | None:
    """`retention` as it is; 400 when nobody can mean it."""
    refusal = "" if retention is None else retention_refusal(retention)
    if refusal:
        raise AdminError(400, refusal)
    return retention


def checked_ttl_s(ttl_s: int) -> int:
    """`ttl_s` as it is; 412 when it is no time to live."""
    if not 0 <= ttl_s <= MAX_SIGNED_32:
        raise AdminError(412, "Invalid value for message TTL: it must be >= 0, and no more than 2147483647 seconds")
    return ttl_s


def checked_quota(quota: BacklogQuota | None) -> BacklogQuota | None:
    """`quota` as it is; 400 when it does not say what happens above it."""
    if quota is not None and quota.policy not in set(BacklogQuotaPolicy):
        raise AdminError(400, f"The backlog quota's policy must be one of {', '.join(BacklogQuotaPolicy)}")
    return quota


def quota_type(call: Call) -> BacklogQuotaType:
    """What the query's `backlogQuotaType` means, the size by default; 404 for anything else."""
    text = call.query("backlogQuotaType") or BacklogQuotaType.SIZE
    try:
        return BacklogQuotaType(text)
    except ValueError:
        raise AdminError(404, f"No such backlogQuotaType: {text!r}") from None
