"""`/admin/v3/console/cluster/...`: brokers, bundles and their owners for the web console, and actions on bundles.

A console page cannot follow a redirect to another broker, so this broker sends each action to the bundle's owner, with
the credentials of `brokerClient*`. All calls require a superuser.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call, json_with_nulls, no_content
from pybroker.admin.calls.existing_namespaces import existing_namespace, superusers_namespace
from pybroker.admin.calls.own_address import broker_id, web_url
from pybroker.admin.calls.owner_lookup import looked_up_owner, shown_broker
from pybroker.admin.calls.queries import Query
from pybroker.admin.calls.redirects import base_url
from pybroker.admin.calls.routing import route
from pybroker.admin.slices import exhaust
from pybroker.cluster.bundles import Bundle, bundles_of, checked_bundle
from pybroker.cluster.ownership.bundle_ownership import BundleUnloading, OwnerKind
from pybroker.cluster.ownership.namespace_bundle import NamespaceBundle
from pybroker.errors import AdminError, MetadataError
from pybroker.version import __version__

if TYPE_CHECKING:
    from pybroker.admin.stats.rate_sampler import RateSampler
    from pybroker.broker.service import BrokerService
    from pybroker.cluster.load_balance.load_report import BundleFigures
    from pybroker.cluster.membership.registration import Registration
    from pybroker.cluster.ownership.bundle_ownership import BundleOwnership

BASE = "/admin/v3/console/cluster"
MAX_BUNDLES = 500
DEFAULT_BUNDLES = 50
MAX_SEARCH_CHARACTERS = 200
PROBE_S = 2.0
LISTED = (
    Query("search", "words that the name of a bundle must contain"),
    Query("offset", "number of skipped bundles", int, 0),
    Query("limit", f"maximum number of bundles, up to {MAX_BUNDLES}", int, DEFAULT_BUNDLES),
)
DESTINATION = Query("destinationBroker", "id of the broker that shall own the bundle")


class ClusterRoutes:
    """Routes of the console's cluster page."""

    def __init__(self, broker: BrokerService, rates: RateSampler) -> None:
        self._broker = broker
        self._rates = rates

    def routes(self) -> list[Route]:
        path = BASE + "/{tenant}/{namespace}/{bundle}"
        return [
            route("GET", BASE, self.get_brokers),
            route("GET", BASE + "/bundles", self.list_bundles, queries=LISTED),
            route("GET", BASE + "/owner/{domain}/{tenant}/{namespace}/{topic}", self.get_owner),
            route("PUT", path + "/unload", self.unload_bundle, queries=(DESTINATION,)),
            route("PUT", path + "/split", self.split_bundle),
        ]

    # --- questions ---------------------------------------------------------------------------------------------------

    async def get_brokers(self, call: Call) -> Response:
        """Return the brokers of the cluster with versions and loads, and the leader. A standalone broker lists itself."""
        await call.require_superuser()
        own, membership = broker_id(call), self._broker.membership
        shown: dict[str, Any] = {"cluster": call.config.cluster_name, "own": own, "time": call.runtime.clock.wall_ms()}
        if membership is None:
            found = self._broker.presence.addresses.resolve(None)
            alone = {
                "id": own,
                "serviceUrl": found.broker_url or found.broker_url_tls,
                "webUrl": found.http_url or found.http_url_tls,
                "version": __version__,
                "isPybroker": True,
                "startedAt": self._rates.started_wall_ms,
            }
            return json_with_nulls({**shown, "isShared": False, "leader": own, "brokers": [alone], "unusable": {}})
        brokers = [_shown_broker(each) for _, each in sorted(membership.registrations.items())]
        return json_with_nulls(
            {
                **shown,
                "isShared": True,
                "leader": membership.leader_id,
                "brokers": brokers,
                "unusable": dict(sorted(membership.unusable.items())),
            }
        )

    async def list_bundles(self, call: Call) -> Response:
        """List the bundles of all namespaces in pages, with their owners and the figures that the owners last reported."""
        await call.require_superuser()
        offset, limit = call.query_integer("offset", 0), call.query_integer("limit", DEFAULT_BUNDLES)
        if not 1 <= limit <= MAX_BUNDLES or offset < 0:
            raise AdminError(400, f"The query parameter limit must be from 1 to {MAX_BUNDLES}, and offset 0 or more")
        words = (call.query("search") or "")[:MAX_SEARCH_CHARACTERS].lower().split()
        matching: list[NamespaceBundle] = []
        await exhaust(self._matching(words, matching), call.runtime.clock)
        rows = [await self._shown_bundle(call, each) for each in matching[offset : offset + limit]]
        return json_with_nulls({"bundles": rows, "matching": len(matching)})

    def _matching(self, words: list[str], found: list[NamespaceBundle]) -> Iterator[None]:
        """Append to `found` the bundles whose names contain all `words`. Yields between namespaces."""
        resources = self._broker.resources
        for tenant in resources.tenants():
            for namespace in resources.namespaces(tenant):
                policies = resources.namespace(namespace)
                for bundle in [] if policies is None else bundles_of(policies.bundles.boundaries):
                    each = NamespaceBundle(namespace, bundle)
                    if all(word in str(each).lower() for word in words):
                        found.append(each)
                yield

    async def _shown_bundle(self, call: Call, bundle: NamespaceBundle) -> dict[str, Any]:
        ownership, membership = self._broker.ownership, self._broker.membership
        shown: dict[str, Any] = {"namespace": str(bundle.namespace), "range": str(bundle.range)}
        if ownership is None:
            return {**shown, "owner": broker_id(call), "state": "owned"}
        owner, state = await _owner_and_state(ownership, bundle)
        registration = membership.registrations.get(owner or "") if membership is not None else None
        figures = None if registration is None else registration.report.bundles.get(str(bundle))
        return {**shown, "owner": owner, "state": state, **({} if figures is None else _shown_figures(figures))}

    async def get_owner(self, call: Call) -> Response:
        """Return the broker that serves a topic: its id, the address of its console, and whether it is this broker
        (`isHere`).
        """
        name = call.topic_name()
        await call.require_lookup(name)
        ownership = self._broker.ownership
        here = {"isHere": True, "broker": broker_id(call), "webUrl": web_url(call)}
        if ownership is None or call.resources.namespace(name.namespace) is None:
            return json_with_nulls(here)
        if self._broker.partitioned.get(name) is not None:
            return json_with_nulls(here)
        owner = await looked_up_owner(call, ownership, name, PROBE_S)
        if owner.kind is OwnerKind.HERE:
            return json_with_nulls(here)
        url = base_url(owner.urls, call.scope["scheme"])
        return json_with_nulls({"isHere": False, "broker": shown_broker(ownership, owner.urls), "webUrl": url})

    # --- actions -----------------------------------------------------------------------------------------------------

    async def unload_bundle(self, call: Call) -> Response:
        """Unload a bundle at its owner; with `destinationBroker`, that broker owns it afterwards."""
        destination = call.query("destinationBroker")
        return await self._act(call, "unload", {"destinationBroker": destination} if destination else {})

    async def split_bundle(self, call: Call) -> Response:
        """Split a bundle at its owner by `defaultNamespaceBundleSplitAlgorithm`. Clients stay connected."""
        return await self._act(call, "split", {})

    async def _act(self, call: Call, action: str, query: dict[str, str]) -> Response:
        namespace = await superusers_namespace(call)
        bundle: Bundle = checked_bundle(call.name("bundle"), existing_namespace(call, namespace).bundles.boundaries)
        others = self._broker.other_brokers
        path = f"/admin/v2/namespaces/{namespace}/{bundle}/{action}"
        if others is None:
            raise AdminError(
                405,
                f"Bundle {bundle} cannot be changed over this path, because this broker has no cluster: use PUT {path}",
            )
        own = base_url(self._broker.presence.addresses.resolve(None), call.scope["scheme"])
        await others.call(own, "PUT", f"{path}?{urlencode(query)}" if query else path)  # which redirects it
        return no_content()


async def _owner_and_state(ownership: BundleOwnership, bundle: NamespaceBundle) -> tuple[str | None, str]:
    try:
        owner = await ownership.present_owner(bundle)
    except BundleUnloading:
        return None, "unloading"
    except MetadataError as error:
        return None, str(error)
    if owner is None:
        return None, "no owner"
    if owner.kind is OwnerKind.HERE:
        return ownership.registry.own_broker.broker_id, "owned"
    return shown_broker(ownership, owner.urls), "owned"


def _shown_broker(registration: Registration) -> dict[str, Any]:
    broker, report = registration.broker, registration.report
    return {
        "id": broker.broker_id,
        "serviceUrl": broker.broker_service_url or broker.broker_service_url_tls,
        "webUrl": broker.web_service_url or broker.web_service_url_tls,
        "version": broker.version,
        "isPybroker": registration.is_pybroker,
        "startedAt": broker.start_timestamp_ms,
        "measuredAt": report.measured_ms or None,
        "usagePercent": round(100 * report.usage_share, 1),
        "bundles": len(report.bundles),
        **_shown_figures(report.totals),
    }


def _shown_figures(figures: BundleFigures) -> dict[str, Any]:
    return {
        "topics": figures.topic_count,
        "producers": figures.producer_count,
        "consumers": figures.consumer_count,
        "messagesIn": round(figures.message_rate_in, 3),
        "messagesOut": round(figures.message_rate_out, 3),
        "bytesIn": round(figures.byte_rate_in, 3),
        "bytesOut": round(figures.byte_rate_out, 3),
    }
