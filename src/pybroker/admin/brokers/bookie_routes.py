"""`/admin/v2/bookies`: bookies of the cluster and their racks, in the format of a Java broker.

This broker shows the racks that other tools have stored; it neither uses nor changes racks. If ledgers are not on
BookKeeper, the lists are empty.
"""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call, json_response
from pybroker.admin.calls.routing import route
from pybroker.errors import AdminError, StoreError

BOOKIES = "/admin/v2/bookies"
RACKS = BOOKIES + "/racks-info"
COOKIES_PATH = "/ledgers/cookies"
"""Path in the metadata store with one node for each bookie that was ever started, including stopped bookies."""
RACKS_PATH = "/bookies"


def routes() -> list[Route]:
    return [
        route("GET", BOOKIES + "/all", list_bookies),
        route("GET", RACKS, list_racks),
        route("GET", RACKS + "/{bookie}", get_rack),
        route("POST", RACKS + "/{bookie}", refuse_rack),
        route("DELETE", RACKS + "/{bookie}", refuse_removal),
    ]


async def list_bookies(call: Call) -> Response:
    """List the bookies of the cluster, including stopped bookies."""
    await call.require_superuser()
    if call.broker.ledgers.store.bookies() is None:
        return json_response({"bookies": []})
    names = await call.broker.metadata_store.children(COOKIES_PATH)
    return json_response({"bookies": [{"bookieId": name} for name in names]})


async def list_racks(call: Call) -> Response:
    """Return the racks of all bookies, by bookie group."""
    await call.require_superuser()
    return json_response(await _racks(call))


async def get_rack(call: Call) -> Response:
    """Return the rack of one bookie. 404 if no rack is stored."""
    await call.require_superuser()
    for group in (await _racks(call)).values():
        found = group.get(call.name("bookie")) if isinstance(group, dict) else None
        if found is not None:
            return json_response(found)
    raise AdminError(404, f"Bookie rack placement configuration not found: {call.name('bookie')}")


async def refuse_rack(call: Call) -> Response:
    """Reject a change of a bookie's rack: 405, because this broker does not place entries by rack; 404 if ledgers are
    not on BookKeeper.
    """
    await call.require_superuser()
    if call.broker.ledgers.store.bookies() is None:
        raise AdminError(
            404, f"Bookie {call.name('bookie')} does not exist: this broker stores messages in its own data directory"
        )
    raise AdminError(
        405, f"The rack of bookie {call.name('bookie')} cannot be changed: this broker does not place entries by racks"
    )


async def refuse_removal(call: Call) -> Response:
    """Reject the removal of a bookie's rack: 404 for a bookie without a rack, or if ledgers are not on BookKeeper; else
    405.
    """
    await get_rack(call)
    return await refuse_rack(call)


async def _racks(call: Call) -> dict[str, Any]:
    if call.broker.ledgers.store.bookies() is None:
        return {}
    found = await call.broker.metadata_store.get(RACKS_PATH)
    if found is None or not found.value:
        return {}
    try:
        return msgspec.json.decode(found.value, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise StoreError(
            f"the racks of the bookies are unknown: the document {RACKS_PATH} in the metadata store is damaged ({error})"
        ) from error
