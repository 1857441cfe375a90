"""The brokers of a cluster that run the transaction coordinators, and REST calls to all of them."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from pybroker.admin.calls.owner_lookup import looked_up_owner
from pybroker.admin.calls.redirects import base_url
from pybroker.cluster.ownership.bundle_ownership import BundleUnloading, OwnerKind
from pybroker.errors import AdminError
from pybroker.runtime.tasks import all_results
from pybroker.transactions.coordinators import partition_of

if TYPE_CHECKING:
    from pybroker.admin.calls.call import Call
    from pybroker.cluster.ownership.bundle_ownership import Owner

BASE = "/admin/v3/transactions"
PROBE_S = 2.0
"""For any answer of the broker that assigns a coordinator without an owner."""


async def coordinator_owners(call: Call, *, may_assign: bool) -> list[Owner | None]:
    """Return the broker that runs each transaction coordinator, in the order of coordinator ids; None if this broker
    runs it.

    With `may_assign`, a coordinator without an owner is assigned to a broker. Without it, the result is also None for a
    coordinator that no broker runs at the moment.
    """
    count, ownership = call.broker.transactions.count, call.broker.ownership
    found: list[Owner | None] = [None] * count
    if ownership is None:
        return found
    for number in range(count):
        partition = partition_of(number)
        try:
            owner = await ownership.present_owner(ownership.bundle_of(partition))
        except BundleUnloading:
            continue
        if owner is None and may_assign:
            owner = await looked_up_owner(call, ownership, partition, PROBE_S)
        found[number] = None if owner is None or owner.kind is OwnerKind.HERE else owner
    return found


async def of_other_brokers(call: Call, path: str) -> dict[int, Any]:
    """Send a GET of `path` (below BASE) for each transaction coordinator that another broker runs. Return the decoded
    responses by coordinator id, without coordinators that have not started (404).

    Raises AdminError or ServiceNotReady if a broker does not respond.
    """
    owners = await coordinator_owners(call, may_assign=False)
    asked = {number: owner for number, owner in enumerate(owners) if owner is not None}
    answers = await all_results(
        _answer(call, owner, f"{BASE}{path}?coordinatorId={number}") for number, owner in asked.items()
    )
    return {number: answer for number, answer in zip(asked, answers, strict=True) if answer is not None}


async def _answer(call: Call, owner: Owner, path: str) -> Any:
    others = call.broker.other_brokers
    assert others is not None, "a broker with other owners has it"
    try:
        return await others.call(base_url(owner.urls, call.scope["scheme"]), "GET", path)
    except AdminError as error:
        if error.status == HTTPStatus.NOT_FOUND:
            return None
        raise
