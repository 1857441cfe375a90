"""`/lookup/v2/topic`: the broker that serves a topic, and the topic's bundle."""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call, json_response, text_response
from pybroker.admin.calls.queries import Query
from pybroker.admin.calls.redirects import redirect_with
from pybroker.admin.calls.routing import route
from pybroker.cluster.bundles import find_bundle
from pybroker.model.policies import FIRST_BOUNDARY, LAST_BOUNDARY

BASE = "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}"
LISTENER_NAME_HEADER = "x-pulsar-listenername"
REDIRECTED = Query("authoritative", "set by a broker that redirects the lookup: this broker acquires the bundle", bool)
LISTENER = Query("listenerName", "name of the advertised listener whose addresses are returned")


def routes() -> list[Route]:
    return [
        route("GET", BASE, lookup_topic, queries=(LISTENER, REDIRECTED)),
        route("GET", BASE + "/bundle", get_bundle),
    ]


async def lookup_topic(call: Call) -> Response:
    topic = call.topic_name()
    await call.require_lookup(topic)
    listener_name = call.query("listenerName") or call.headers.get(LISTENER_NAME_HEADER)
    answer = await call.broker.lookup(topic, listener_name, is_authoritative=call.flag("authoritative"))
    found = answer.addresses
    if answer.is_redirect:
        return redirect_with(call, found, is_authoritative=answer.is_authoritative)
    return json_response(
        {
            "brokerUrl": found.broker_url,
            "brokerUrlTls": found.broker_url_tls or None,
            "httpUrl": found.http_url,
            "httpUrlTls": found.http_url_tls or None,
            "nativeUrl": found.broker_url,
            "brokerUrlSsl": "",
        }
    )


async def get_bundle(call: Call) -> Response:
    topic = call.topic_name()
    await call.require_list_topics(topic.namespace)
    policies = call.resources.namespace(topic.namespace)
    # As in Pulsar, a missing namespace has one bundle.
    boundaries = policies.bundles.boundaries if policies is not None else (FIRST_BOUNDARY, LAST_BOUNDARY)
    return text_response(str(find_bundle(topic, boundaries)), "application/json")
