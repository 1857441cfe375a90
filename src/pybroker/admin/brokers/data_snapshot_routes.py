"""`/admin/v3/data-snapshots`: consistent snapshots of the data directory, which `pybroker backup` copies.

Requires a superuser. The path of a snapshot is returned only to clients on the broker's host.
"""

# ruff: noqa: N815  (the attributes are the JSON properties)

from __future__ import annotations

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call, json_response, no_content
from pybroker.admin.calls.routing import route
from pybroker.backup.data_snapshot import DataSnapshot, DataSnapshots, SnapshotInUse
from pybroker.errors import AdminError

SNAPSHOTS = "/admin/v3/data-snapshots"


class DataSnapshotShown(msgspec.Struct, omit_defaults=True):
    """A data snapshot. It expires after `expiresInMillis` unless it is renewed."""

    id: str
    lineage: str
    createdMillis: int
    pausedMillis: int
    expiresInMillis: int
    path: str | None = None


def routes() -> list[Route]:
    return [
        route("POST", SNAPSHOTS, create, answers={409: "Another snapshot exists"}),
        route("GET", SNAPSHOTS, show),
        route("PUT", SNAPSHOTS + "/{snapshot}", renew),
        route("DELETE", SNAPSHOTS + "/{snapshot}", release, answers={204: "The snapshot was removed"}),
    ]


async def create(call: Call) -> Response:
    """Create a snapshot of all stored data. 409 while another snapshot exists."""
    snapshots = await _snapshots(call)
    try:
        return _shown(call, snapshots, await snapshots.create())
    except SnapshotInUse as error:
        raise AdminError(409, str(error)) from error


async def show(call: Call) -> Response:
    """Return a list with the existing snapshot, or an empty list."""
    snapshots = await _snapshots(call)
    current = snapshots.current
    return json_response([] if current is None else [_description(call, snapshots, current)])


async def renew(call: Call) -> Response:
    """Renew a snapshot, which then expires after the returned `expiresInMillis`. 404 if it has already expired."""
    snapshots = await _snapshots(call)
    name = call.name("snapshot")
    renewed = snapshots.renew(name)
    if renewed is None:
        raise _missing(name)
    return _shown(call, snapshots, renewed)


async def release(call: Call) -> Response:
    """Delete a snapshot."""
    name = call.name("snapshot")
    snapshots = await _snapshots(call)
    if not await snapshots.release(name):
        raise _missing(name)
    return no_content()


async def _snapshots(call: Call) -> DataSnapshots:
    await call.require_superuser()
    snapshots = call.broker.data_snapshots
    if snapshots is None:
        raise AdminError(
            405,
            "This broker does not store data in local files (ledgerStore, metadataStore), so it cannot take snapshots",
        )
    return snapshots


def _shown(call: Call, snapshots: DataSnapshots, snapshot: DataSnapshot) -> Response:
    return json_response(_description(call, snapshots, snapshot))


def _description(call: Call, snapshots: DataSnapshots, snapshot: DataSnapshot) -> DataSnapshotShown:
    return DataSnapshotShown(
        snapshot.snapshot_id,
        snapshot.lineage,
        snapshot.created_ms,
        round(snapshot.paused_ms),
        round(snapshots.remaining_ms(snapshot)),
        str(snapshot.directory.absolute()) if call.is_from_this_host else None,
    )


def _missing(name: str) -> AdminError:
    return AdminError(
        404, f"Data snapshot {name} does not exist: it has expired, or the broker was restarted. Create a new snapshot"
    )
