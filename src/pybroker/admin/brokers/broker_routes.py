"""`/admin/v2/brokers`: list of brokers, health, and configuration."""

from __future__ import annotations

import asyncio
from pathlib import Path

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call, empty_ok, json_response, no_content, text_response
from pybroker.admin.calls.own_address import broker_id, broker_ids, web_url
from pybroker.admin.calls.queries import Query
from pybroker.admin.calls.routing import route
from pybroker.cluster.bundles import find_bundle
from pybroker.config import dump
from pybroker.config.dynamic import dynamic_names
from pybroker.errors import AdminError, ServiceNotReady
from pybroker.metadata.metadata_paths import LEDGERS, MANAGED_LEDGERS
from pybroker.version import __version__

BASE = "/admin/v2/brokers"
CONFIGURATION = BASE + "/configuration"
BROKER = Query("brokerId", "id of a broker")
SHUTDOWN = (Query("maxConcurrentUnloadPerSec", "bundles that are handed over per second; 0: no limit", int, 0),)

TOPICS_PER_TURN = 256


def routes() -> list[Route]:
    return [
        route("GET", BASE, list_brokers),
        route("GET", BASE + "/health", get_health, queries=(BROKER,)),
        route("GET", BASE + "/ready", get_ready),
        route("GET", BASE + "/version", get_version),
        route("GET", BASE + "/leaderBroker", get_leader),
        route("GET", BASE + "/backlog-quota-check", check_backlog_quotas),
        route("GET", BASE + "/internal-configuration", get_internal_configuration),
        route(
            "POST", BASE + "/shutdown", shut_down, queries=SHUTDOWN, answers={204: "The broker stops, as on SIGTERM"}
        ),
        route("GET", CONFIGURATION, list_dynamic_settings),
        route("GET", CONFIGURATION + "/runtime", get_runtime_settings),
        route("GET", CONFIGURATION + "/values", get_overrides),
        route("POST", CONFIGURATION + "/{name}/{value}", set_override),
        route("DELETE", CONFIGURATION + "/{name}", remove_override),
        route("GET", BASE + "/{cluster}", list_brokers_of_cluster),
        route("GET", BASE + "/{cluster}/{broker}/ownedNamespaces", list_owned_namespaces),
    ]


async def list_brokers(call: Call) -> Response:
    """List the registered brokers of the cluster. A standalone broker lists itself."""
    await call.require_superuser()
    return json_response(broker_ids(call))


async def list_brokers_of_cluster(call: Call) -> Response:
    """List the registered brokers of this broker's cluster. The cluster name in the path is ignored."""
    await call.require_superuser()
    return json_response(broker_ids(call))


async def get_leader(call: Call) -> Response:
    """Return the elected leader broker. 404 while the cluster has no leader."""
    await call.require_superuser()
    membership = call.broker.membership
    if membership is None:
        return json_response({"serviceUrl": web_url(call), "brokerId": broker_id(call)})
    leader = membership.leader()
    if leader is None:
        raise AdminError(404, "Couldn't find leader broker")
    return json_response(
        {"serviceUrl": leader.addresses.http_url or leader.addresses.http_url_tls, "brokerId": leader.broker_id}
    )


async def check_backlog_quotas(call: Call) -> Response:
    """Enforce the backlog quotas of this broker's loaded topics now, in addition to the periodic check."""
    await call.require_superuser()
    await call.broker.maintenance.check_backlog_quotas()
    return no_content()


async def get_health(call: Call) -> Response:
    """Run a health check, which stores a message and reads it back. Return `ok`, or an error status if the check fails.

    With `brokerId` of another broker in the cluster, the response is a redirect (307) to that broker. `topicVersion` is
    ignored, as in Pulsar.
    """
    await call.require_superuser()
    named = call.query("brokerId")
    if named and named != broker_id(call):
        return _redirect_to_broker(call, named)
    await call.broker.health_check()
    return text_response("ok", "application/json")


async def get_ready(call: Call) -> Response:
    """Return `ok` if clients can connect: the broker has started, is not stopping, and has disk space. Otherwise 503
    with the reason. `/ready` requires no credentials.
    """
    reason = call.broker.unready_reason()
    if reason is not None:
        raise ServiceNotReady(reason)
    return text_response("ok", "application/json")


async def get_version(_call: Call) -> Response:
    return text_response(__version__, "application/json")


async def list_dynamic_settings(call: Call) -> Response:
    await call.require_superuser()
    return json_response(dynamic_names())


async def get_runtime_settings(call: Call) -> Response:
    await call.require_superuser()
    return json_response(dump(call.config))


async def get_overrides(call: Call) -> Response:
    """Return the dynamic configuration keys that were changed at run time, with their values; secrets are masked. The
    changes survive restarts.
    """
    await call.require_superuser()
    return json_response(call.broker.dynamic.overrides())


async def set_override(call: Call) -> Response:
    """Set a dynamic configuration key. The value takes effect immediately and survives restarts: it overrides the
    configuration file, environment and command line. 412 if the key is not dynamic.

    An invalid value is stored and logged, but not applied. The same holds for a key without effect in pybroker. `GET
    /admin/v2/brokers/configuration/runtime` shows the effective values.
    """
    await call.require_superuser()
    await call.broker.dynamic.set(call.name("name"), call.name("value"))
    return empty_ok()


async def remove_override(call: Call) -> Response:
    """Remove the run-time change of a dynamic configuration key. The value from the configuration file, environment or
    command line applies again. 412 if the key is not dynamic.
    """
    await call.require_superuser()
    await call.broker.dynamic.unset(call.name("name"))
    return empty_ok()


async def list_owned_namespaces(call: Call) -> Response:
    """List the bundles that the broker in the path owns; for a standalone broker, its bundles with loaded topics."""
    await call.require_superuser()
    require_this_broker(call, call.name("broker"))
    owned: dict[str, dict[str, object]] = {}
    if call.broker.ownership is not None:
        for each in call.broker.ownership.owned_bundles():
            owned[str(each)] = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
        return json_response(owned)
    for index, topic in enumerate(call.broker.loaded.all()):
        if index % TOPICS_PER_TURN == TOPICS_PER_TURN - 1:
            await asyncio.sleep(0)
        policies = call.resources.namespace(topic.name.namespace)
        if policies is not None:
            bundle = find_bundle(topic.name, policies.bundles.boundaries)
            owned[f"{topic.name.namespace}/{bundle}"] = {
                "broker_assignment": "shared",
                "is_controlled": False,
                "is_active": True,
            }
    return json_response(owned)


async def get_internal_configuration(call: Call) -> Response:
    """Return the addresses of the metadata store and of the ledger store, in the format that Pulsar's tools expect."""
    await call.require_superuser()
    config = call.config
    url = config.metadata_store_url or (
        "memory:local" if config.metadata_store == "memory" else f"sqlite:{Path(config.data_directory, 'metadata.db')}"
    )
    configuration_url = config.configuration_metadata_store_url or url
    return json_response(
        {
            "zookeeperServers": url,
            "configurationStoreServers": configuration_url,
            "metadataStoreUrl": url,
            "configurationMetadataStoreUrl": configuration_url,
            "ledgersRootPath": MANAGED_LEDGERS if call.broker.ownership is None else LEDGERS,
        }
    )


async def shut_down(call: Call) -> Response:
    """Stop the broker, as on SIGTERM. Clients reconnect to other brokers.

    In a cluster, other brokers first take over its bundles, at most `maxConcurrentUnloadPerSec` per second.
    """
    await call.require_superuser()
    if call.broker.request_stop is None:
        raise AdminError(
            405,
            (
                "The broker cannot be stopped by this request, because it runs inside of another program. Stop the "
                "broker in that program."
            ),
        )
    call.broker.handovers_per_s = max(0, call.query_integer("maxConcurrentUnloadPerSec", 0))
    call.broker.request_stop()
    return no_content()


def _redirect_to_broker(call: Call, named: str) -> Response:
    """Return a redirect (307) to the same path at the broker with the id `named`. Raises AdminError 404 if no such
    broker is registered.
    """
    membership = call.broker.membership
    found = None if membership is None else membership.brokers().get(named)
    if found is None:
        raise unknown_broker(named)
    addresses = found.addresses
    query = call.scope["query_string"].decode("latin-1")
    url = f"{addresses.http_url or addresses.http_url_tls}{call.scope['path']}?{query}"
    return Response(status_code=307, headers={"location": url})


def require_this_broker(call: Call, named: str) -> None:
    """Check that `named` is the id of this broker. Raises AdminError 404 otherwise."""
    if named != broker_id(call):
        raise unknown_broker(named)


def unknown_broker(named: str) -> AdminError:
    return AdminError(404, f"Broker id '{named}' not found in available brokers.")
