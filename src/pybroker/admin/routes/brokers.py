"""`/admin/v2/brokers`: which brokers there are, whether this one is well, and its configuration."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.responses import Response
from starlette.routing import Route

from pybroker import __version__
from pybroker.admin.call import Call, json_response, no_content, route, text_response
from pybroker.config import KEYS, dump
from pybroker.errors import ServiceNotReady

BASE = "/admin/v2/brokers"
CONFIGURATION = BASE + "/configuration"


def routes() -> list[Route]:
    return [
        route("GET", BASE, list_brokers),
        route("GET", BASE + "/health", get_health),
        route("GET", BASE + "/ready", get_ready),
        route("GET", BASE + "/version", get_version),
        route("GET", BASE + "/leaderBroker", get_leader),
        route("GET", BASE + "/backlog-quota-check", check_backlog_quotas),
        route("GET", CONFIGURATION, list_dynamic_settings),
        route("GET", CONFIGURATION + "/runtime", get_runtime_settings),
        route("GET", CONFIGURATION + "/values", get_overrides),
        route("GET", BASE + "/{cluster}", list_brokers),
    ]


async def list_brokers(call: Call) -> Response:
    call.require_superuser()
    return json_response([broker_id(call)])


async def get_leader(call: Call) -> Response:
    call.require_superuser()
    return json_response({"serviceUrl": _web_url(call), "brokerId": broker_id(call)})


async def check_backlog_quotas(call: Call) -> Response:
    """Do what the periodic check does, now."""
    call.require_superuser()
    await call.broker.maintenance.check_backlog_quotas()
    return no_content()


async def get_health(call: Call) -> Response:
    call.require_superuser()
    await call.broker.health_check()
    return text_response("ok", "application/json")


async def get_ready(call: Call) -> Response:
    if not call.broker.ready:
        raise ServiceNotReady("the broker is starting or stopping")
    return text_response("ok", "application/json")


async def get_version(_call: Call) -> Response:
    return text_response(__version__, "application/json")


async def list_dynamic_settings(call: Call) -> Response:
    call.require_superuser()
    return json_response([key for key, info in KEYS.items() if info.dynamic and info.supported])


async def get_runtime_settings(call: Call) -> Response:
    call.require_superuser()
    return json_response(dump(call.config))


async def get_overrides(call: Call) -> Response:
    """Settings that were changed at run time and outlive a restart: none can be."""
    call.require_superuser()
    return json_response({})


def _web_url(call: Call) -> str:
    addresses = call.broker.addresses.resolve(None)
    return addresses.http_url or addresses.http_url_tls


def broker_id(call: Call) -> str:
    """How this broker is named in lists: the address of its HTTP port."""
    return urlsplit(_web_url(call)).netloc
