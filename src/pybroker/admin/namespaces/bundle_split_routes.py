"""`PUT /admin/v2/namespaces/{tenant}/{namespace}/{bundle}/split`: split a bundle at its owner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call, no_content
from pybroker.admin.calls.existing_namespaces import existing_namespace, superusers_namespace
from pybroker.admin.calls.queries import Query
from pybroker.admin.calls.redirects import HOT, LARGEST, to_owner_of
from pybroker.admin.calls.routing import route
from pybroker.admin.namespaces.bundle_routes import BUNDLE, topics_of_namespace, unload_topics
from pybroker.admin.slices import exhaust
from pybroker.admin.stats.bundle_load import BundleLoad, bundle_loads
from pybroker.cluster.bundles import Bundle, checked_bundle, fullest_bundle, hash_position, split_boundaries
from pybroker.cluster.load_balance.load_report import BundleFigures
from pybroker.cluster.ownership.namespace_bundle import NamespaceBundle
from pybroker.cluster.split_algorithms import (
    FLOW_OR_QPS_EQUALLY_DIVIDE,
    FlowLimits,
    TopicLoad,
    flow_positions,
    hottest_bundle,
    split_positions,
)
from pybroker.errors import AdminError
from pybroker.model.policies import BundlesData

if TYPE_CHECKING:
    from pybroker.admin.stats.rate_sampler import RateSampler
    from pybroker.config import BrokerConfig
    from pybroker.model.names import NamespaceName

MIB = 1 << 20
SPLIT = (
    Query("splitAlgorithmName", "default: `defaultNamespaceBundleSplitAlgorithm`"),
    Query("unload", "unload the bundle afterwards", bool),
    Query("authoritative", "set by a broker that redirects the call", bool),
)


class BundleSplitRoutes:
    """Route that splits a bundle. It uses the measured rates of topics."""

    def __init__(self, rates: RateSampler) -> None:
        self._rates = rates

    def routes(self) -> list[Route]:
        return [route("PUT", BUNDLE + "/split", self.split_bundle, body=list[int], queries=SPLIT)]

    async def split_bundle(self, call: Call) -> Response:
        """Split a bundle, or the bundle with the most topics (`LARGEST`) or traffic (`HOT`), by the algorithm
        `splitAlgorithmName`. `unload=true` unloads the new bundles afterwards.

        The body is a list of hash positions, for specified_positions_divide only.
        """
        namespace = await superusers_namespace(call)
        boundaries = existing_namespace(call, namespace).bundles.boundaries
        wanted = await call.optional_json(list[int]) or []
        algorithm = call.query("splitAlgorithmName") or call.config.default_namespace_bundle_split_algorithm
        supported = call.config.supported_namespace_bundle_split_algorithms
        if algorithm not in supported:
            raise AdminError(
                412, f"Unsupported namespace bundle split algorithm, supported algorithms are [{', '.join(supported)}]"
            )
        names = await topics_of_namespace(call, namespace)
        bundle = await self._bundle_to_split(call, namespace, boundaries, names)
        whole = NamespaceBundle(namespace, bundle)
        ownership = call.broker.ownership
        if ownership is not None:  # The path may name no bundle, so the owner is known only now.
            path = f"/admin/v2/namespaces/{namespace}/{bundle}/split"
            response = await to_owner_of(call, ownership, whole, may_acquire=True, path=path)
            if response is not None:
                return response
        if algorithm == FLOW_OR_QPS_EQUALLY_DIVIDE:
            cut = flow_positions(bundle, await self._loads(call, whole), flow_limits(call.config))
        else:
            inside = [position for position in map(hash_position, names) if position in bundle]
            cut = split_positions(bundle, algorithm, inside, wanted)
        if not cut:
            return no_content()

        def change(bundles: BundlesData) -> BundlesData:
            # Check again: a concurrent request may have split it
            checked_bundle(str(bundle), bundles.boundaries)
            new = split_boundaries(bundles.boundaries, bundle, cut)
            return BundlesData(new, len(new) - 1)

        parts = [Bundle(lower, upper) for lower, upper in pairwise([bundle.lower, *cut, bundle.upper])]
        if ownership is None:
            await call.resources.update_bundles(namespace, change)
        else:
            owned = [NamespaceBundle(namespace, part) for part in parts]
            await ownership.split(whole, owned, lambda: call.resources.update_bundles(namespace, change))
        if call.flag("unload"):
            for part in parts:
                await unload_topics(call, namespace, part)
        return no_content()

    async def _bundle_to_split(
        self, call: Call, namespace: NamespaceName, boundaries: list[str], names: list[str]
    ) -> Bundle:
        text = call.name("bundle")
        if text == LARGEST:
            found = fullest_bundle(boundaries, [hash_position(name) for name in names])
        elif text == HOT:
            found = hottest_bundle(str(namespace), boundaries, await self._figures(call))
        else:
            return checked_bundle(text, boundaries)
        if found is None:
            raise AdminError(404, f"Bundle range {text} not found")
        return found

    async def _figures(self, call: Call) -> Mapping[str, BundleFigures]:
        """Return the load of the bundles with loaded topics, by `tenant/namespace/bundle`: in a cluster, of the last load
        reports.
        """
        membership = call.broker.membership
        if membership is not None:
            reports = [each.report for each in membership.registrations.values()]
            return {name: figures for report in reports for name, figures in report.bundles.items()}
        loads: dict[str, BundleLoad] = {}
        await exhaust(bundle_loads(call.broker, self._rates, loads), call.runtime.clock)
        return {name: load.figures for name, load in loads.items()}

    async def _loads(self, call: Call, bundle: NamespaceBundle) -> list[TopicLoad]:
        found: list[TopicLoad] = []

        def steps() -> Iterator[None]:
            for topic in call.broker.loaded.all():
                if bundle.contains(topic.name):
                    load = BundleLoad()
                    load.add(topic, self._rates)
                    found.append(
                        TopicLoad(hash_position(topic.name), load.figures.message_rate, load.figures.byte_rate)
                    )
                yield

        await exhaust(steps(), call.runtime.clock)
        return found


def flow_limits(config: BrokerConfig) -> FlowLimits:
    return FlowLimits(
        config.load_balancer_namespace_bundle_max_msg_rate,
        config.load_balancer_namespace_bundle_max_bandwidth_mbytes * MIB,
        config.flow_or_qps_difference_threshold_percentage / 100,
    )
