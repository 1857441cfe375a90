"""`/admin/v3/entries/...`: read leases, which protect ledgers from trimming, and the data directory for local readers.

A read lease prevents for a limited time that ledgers of a topic are trimmed. Requires permission to consume from the
topic.
"""

# ruff: noqa: N815  (the attributes are the JSON properties)

from __future__ import annotations

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call, json_response
from pybroker.admin.calls.existing import existing_topic
from pybroker.admin.calls.route_paths import ENTRIES
from pybroker.admin.calls.routing import route
from pybroker.admin.entries.entry_plan import Pair, lost_sentences
from pybroker.admin.entries.entry_routes import MAX_TOPICS, local_topic
from pybroker.broker.context.read_leases import LeaseOwner, TooManyLeases
from pybroker.errors import AdminError, BrokerError
from pybroker.model.names import PERSISTENT
from pybroker.model.position import Position

MAX_READER_LENGTH = 128
_MS_PER_SECOND = 1000


class AskedLease(msgspec.Struct):
    """Topic (by its local name in the namespace), and the position [ledger id, entry id] from which the reader reads."""

    topic: str
    start: Pair


class AskedLeases(msgspec.Struct):
    """Leases of one reader. `reader` is a unique name; a later request with this name renews the leases."""

    reader: str
    topics: list[AskedLease]


class LeaseShown(msgspec.Struct, omit_defaults=True):
    """A read lease, or the reason why there is none. `lost`: requested entries that are already deleted."""

    topic: str
    reader: str = ""
    role: str | None = None
    ledgerId: int = -1
    endsInMillis: int = 0
    lost: list[str] = []
    status: int = 200
    reason: str = ""


class LeasesShown(msgspec.Struct):
    """Leases in the order of the request."""

    topics: list[LeaseShown]


class DirectoryShown(msgspec.Struct, omit_defaults=True):
    """Data directory of the broker. `path` is returned only to clients on the broker's host. `runId` is also in the
    file `run.id` of the directory.
    """

    runId: str
    path: str | None = None


def routes() -> list[Route]:
    return [
        route("GET", "/admin/v3/entries/directory", directory, answers={404: "Ledgers are not stored in files"}),
        route("POST", ENTRIES + "/leases", hold, body=AskedLeases),
        route("GET", ENTRIES + "/leases", show),
        route("DELETE", ENTRIES + "/leases/{reader}", give_back),
    ]


async def directory(call: Call) -> Response:
    """Return the run id of the data directory and, to a client on the broker's host, its path. 404 if ledgers are not
    stored in local files.

    The run id is random for each start of the broker. A reader that finds the same id in the directory's file `run.id`
    reads the directory of this broker.
    """
    name = call.broker.data_directory
    if name is None:
        raise AdminError(
            404,
            ("This broker does not store ledgers in local files (ledgerStore), so readers cannot use its directory"),
        )
    return json_response(DirectoryShown(name.run_id, name.path if call.is_from_this_host else None))


async def hold(call: Call) -> Response:
    """Create, renew or move the leases of one reader. A lease expires unless it is renewed: repeat the request within
    half of the returned `endsInMillis`.

    After a restart of the broker, the next request creates the leases again. Its response lists in `lost` the requested
    entries that were trimmed meanwhile.
    """
    asked = await call.json(AskedLeases)
    owner = _owner(call, asked.reader)
    if len(asked.topics) > MAX_TOPICS:
        raise AdminError(
            413, f"The request has {len(asked.topics)} topics, but at most {MAX_TOPICS} are allowed: split the request"
        )
    return Response(
        msgspec.json.encode(LeasesShown([await _hold(call, owner, each) for each in asked.topics])),
        media_type="application/json",
    )


async def show(call: Call) -> Response:
    """List all leases on topics of the namespace."""
    namespace = call.namespace_name()
    await call.require_namespace_admin(namespace)
    broker, now_ms = call.broker, call.broker.runtime.clock.monotonic_ms()
    prefix = f"{PERSISTENT}://{namespace}/"
    return json_response(
        [
            LeaseShown(
                topic.removeprefix(prefix),
                lease.owner.reader,
                lease.owner.role,
                lease.ledger_id,
                round(lease.ends_ms - now_ms),
            )
            for topic in broker.broker_context.read_leases.topics()
            if topic.startswith(prefix)
            for lease in broker.broker_context.read_leases.on(topic, now_ms)
        ]
    )


async def give_back(call: Call) -> Response:
    """End the leases of the reader on topics of the namespace. Return these topics. Leases that another role holds
    under the reader's name stay.
    """
    prefix = f"{PERSISTENT}://{call.namespace_name()}/"
    owner = _owner(call, call.name("reader"))
    leases = call.broker.broker_context.read_leases
    ended = leases.give_back(owner, [each for each in leases.topics_of(owner) if each.startswith(prefix)])
    for name in ended:
        topic = call.broker.loaded.persistent.get(name)
        if topic is not None and not topic.is_fenced:
            topic.ledger.trim_soon()
    return json_response([name.removeprefix(prefix) for name in ended])


async def _hold(call: Call, owner: LeaseOwner, asked: AskedLease) -> LeaseShown:
    config, broker = call.config, call.broker
    try:
        name = local_topic(call, asked.topic)
        await call.require_consume(name, "")
        if not config.read_lease_max_duration_seconds:
            raise AdminError(405, "Read leases are disabled (readLeaseMaxDurationSeconds=0)")
        topic = await existing_topic(call, name)
        lasts_ms = broker.broker_context.read_leases.hold(
            str(name),
            owner,
            asked.start[0],
            config.read_lease_duration_seconds * _MS_PER_SECOND,
            config.read_lease_max_duration_seconds * _MS_PER_SECOND,
            broker.runtime.clock.monotonic_ms(),
            call.holder,
        )
        # After the lease exists, no further entries can be trimmed.
        lost = lost_sentences(topic, Position(*asked.start), topic.ledger.ledgers.end_position)
        return LeaseShown(asked.topic, owner.reader, owner.role, asked.start[0], round(lasts_ms), lost)
    except TooManyLeases as error:
        return LeaseShown(asked.topic, status=429, reason=str(error))
    except AdminError as error:
        call.record_refusal(asked.topic, error)
        return LeaseShown(asked.topic, status=error.status, reason=error.reason)
    except BrokerError as error:
        return LeaseShown(asked.topic, status=type(error).http_status, reason=str(error))


def _owner(call: Call, reader: str) -> LeaseOwner:
    if not 0 < len(reader) <= MAX_READER_LENGTH:
        raise AdminError(412, f"The name of a reader must have 1 to {MAX_READER_LENGTH} characters")
    return LeaseOwner(reader, call.role)
