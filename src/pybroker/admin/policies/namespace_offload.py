"""Offload policies of a namespace: when and where closed ledgers are offloaded. Stored without effect.

Paths: `/admin/v2/namespaces/{tenant}/{namespace}/offload...`.
"""

from __future__ import annotations

from dataclasses import dataclass

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call, empty_ok, json_response, no_content
from pybroker.admin.calls.existing_namespaces import administered_namespace, existing_namespace
from pybroker.admin.calls.route_paths import NAMESPACE
from pybroker.admin.calls.routing import route
from pybroker.admin.policies.policy_values import Long, check_offload
from pybroker.errors import AdminError
from pybroker.model.names import NamespaceName
from pybroker.model.offload_policies import OffloadPolicies
from pybroker.model.policies import NamespacePolicies


@dataclass(frozen=True, slots=True)
class Threshold:
    """Member of the offload policies with separate routes."""

    path: str
    member: str
    namespace_field: str
    """The older namespace member, used if the policy has no value."""
    is_answered_empty: bool = False
    """Whether setting it returns 200 instead of 204."""


THRESHOLDS = (
    Threshold("offloadThreshold", "managedLedgerOffloadThresholdInBytes", "offload_threshold"),
    Threshold(
        "offloadThresholdInSeconds",
        "managedLedgerOffloadThresholdInSeconds",
        "offload_threshold_in_seconds",
        is_answered_empty=True,
    ),
    Threshold("offloadDeletionLagMs", "managedLedgerOffloadDeletionLagInMillis", "offload_deletion_lag_ms"),
)
DELETION_LAG = THRESHOLDS[-1]


def routes() -> list[Route]:
    calls = [ThresholdCalls(each) for each in THRESHOLDS]
    return [
        route("GET", NAMESPACE + "/offloadPolicies", get_offload),
        route("POST", NAMESPACE + "/offloadPolicies", set_offload, body=OffloadPolicies),
        route("DELETE", NAMESPACE + "/removeOffloadPolicies", remove_offload),
        *(route("GET", f"{NAMESPACE}/{each.threshold.path}", each.get) for each in calls),
        *(route("PUT", f"{NAMESPACE}/{each.threshold.path}", each.set, body=int) for each in calls),
        route("DELETE", f"{NAMESPACE}/{DELETION_LAG.path}", calls[-1].unset),
    ]


async def get_offload(call: Call) -> Response:
    shown = (await _policies(call)).offload_policies
    return empty_ok() if shown is None else json_response(shown)


async def set_offload(call: Call) -> Response:
    namespace = await administered_namespace(call)
    given = await call.optional_json(OffloadPolicies)
    if given is None:
        raise AdminError(412, "The offloadPolicies must be specified for namespace offload.")
    check_offload(call, given)

    def change(policies: NamespacePolicies) -> None:
        policies.offload_policies = given

    await call.resources.update_namespace(namespace, change)
    return no_content()


async def remove_offload(call: Call) -> Response:
    def change(policies: NamespacePolicies) -> None:
        policies.offload_policies = None

    await call.resources.update_namespace(await administered_namespace(call), change)
    return no_content()


class ThresholdCalls:
    """Routes of one value: the offload threshold in bytes or in seconds, or the deletion lag in milliseconds."""

    def __init__(self, threshold: Threshold) -> None:
        self.threshold = threshold

    async def get(self, call: Call) -> Response:
        """Return the stored value. -1 means never offload, or never delete. The body is empty if no value is set."""
        policies = await _policies(call)
        own = getattr(policies.offload_policies, self.threshold.member, None)
        shown = getattr(policies, self.threshold.namespace_field) if own is None else own
        return empty_ok() if shown is None else json_response(shown)

    async def set(self, call: Call) -> Response:
        """Set the value. Any 64-bit integer is permitted."""
        namespace = await administered_namespace(call)
        await self._store(call, namespace, await call.json(Long))
        return empty_ok() if self.threshold.is_answered_empty else no_content()

    async def unset(self, call: Call) -> Response:
        """Remove the value."""
        await self._store(call, await administered_namespace(call), None)
        return no_content()

    async def _store(self, call: Call, namespace: NamespaceName, value: int | None) -> None:
        def change(policies: NamespacePolicies) -> None:
            policies.offload_policies = policies.offload_policies or OffloadPolicies()
            setattr(policies.offload_policies, self.threshold.member, value)

        await call.resources.update_namespace(namespace, change)


async def _policies(call: Call) -> NamespacePolicies:
    return existing_namespace(call, await administered_namespace(call))
