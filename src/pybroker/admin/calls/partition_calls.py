"""Forwarding of calls to the brokers that own the partitions of a topic."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pybroker.admin.calls.redirects import base_url
from pybroker.cluster.ownership.bundle_ownership import OwnerKind
from pybroker.errors import AdminError

if TYPE_CHECKING:
    from pybroker.admin.calls.call import Call
    from pybroker.cluster.ownership.bundle_ownership import Owner
    from pybroker.model.names import TopicName


async def other_owner(call: Call, name: TopicName) -> Owner | None:
    """Return the broker that owns the partition `name`; if the partition has no owner, the broker that assigns an
    owner. None if this broker serves the partition.
    """
    ownership = call.broker.ownership
    if ownership is None:
        return None
    owner = await ownership.owner_of(name, None, is_authoritative=False)
    return None if owner.kind is OwnerKind.HERE else owner


async def call_owner(
    call: Call, owner: Owner, name: TopicName, method: str | None = None, behind: str | None = None
) -> Any:
    """Forward a REST call to the owner of the topic or partition `name`. Return the decoded JSON response.

    `method`, and `behind` (the path after the topic), replace those of the call. Raises AdminError with the owner's
    error.
    """
    others = call.broker.other_brokers
    assert others is not None, "only a cluster has other owners"
    url = base_url(owner.urls, call.scope["scheme"])
    if not url:
        raise AdminError(412, f"Failed to find ownership for topic:{name}")
    if behind is None:
        behind = _behind_topic(call)
    query = call.scope["query_string"].decode("latin-1")
    path = f"/admin/v2/{name.domain}/{name.namespace}/{quote(name.local_name, safe='')}{behind}"
    body = json.loads(call.raw_body) if call.raw_body.strip() else None
    return await others.call(url, method or call.scope["method"], f"{path}?{query}" if query else path, body)


def _behind_topic(call: Call) -> str:
    segments: list[str] = call.scope["path"].split("/", 7)
    return f"/{segments[7]}" if len(segments) > 7 else ""
