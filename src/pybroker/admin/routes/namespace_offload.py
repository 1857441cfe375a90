"""`/admin/v2/namespaces/{tenant}/{namespace}/offload...`: where and when closed ledgers are moved.

The thresholds have calls of their own, and are kept in the one document of the policy.
"""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.call import Call, empty_ok, json_response, no_content, route
from pybroker.admin.policy_values import Long, check_offload
from pybroker.admin.routes.namespaces import NAMESPACE, administered_namespace, existing_namespace
from pybroker.errors import AdminError
from pybroker.model.names import NamespaceName
from pybroker.model.offload_policies import OffloadPolicies
from pybroker.model.policies import NamespacePolicies

IN_BYTES = "managedLedgerOffloadThresholdInBytes"
IN_SECONDS = "managedLedgerOffloadThresholdInSeconds"
LAG_MS = "managedLedgerOffloadDeletionLagInMillis"


def routes() -> list[Route]:
    return [
        route("GET", NAMESPACE + "/offloadPolicies", get_offload),
        route("POST", NAMESPACE + "/offloadPolicies", set_offload, body=OffloadPolicies),
        route("DELETE", NAMESPACE + "/removeOffloadPolicies", remove_offload),
        route("GET", NAMESPACE + "/offloadThreshold", get_threshold),
        route("PUT", NAMESPACE + "/offloadThreshold", set_threshold, body=int),
        route("GET", NAMESPACE + "/offloadThresholdInSeconds", get_threshold_in_seconds),
        route("PUT", NAMESPACE + "/offloadThresholdInSeconds", set_threshold_in_seconds, body=int),
        route("GET", NAMESPACE + "/offloadDeletionLagMs", get_deletion_lag),
        route("PUT", NAMESPACE + "/offloadDeletionLagMs", set_deletion_lag, body=int),
        route("DELETE", NAMESPACE + "/offloadDeletionLagMs", remove_deletion_lag),
    ]


async def get_offload(call: Call) -> Response:
    shown = _policies(call).offload_policies
    return empty_ok() if shown is None else json_response(shown)


async def set_offload(call: Call) -> Response:
    namespace = administered_namespace(call)
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

    await call.resources.update_namespace(administered_namespace(call), change)
    return no_content()


async def get_threshold(call: Call) -> Response:
    """-1: never by size."""
    policies = _policies(call)
    own = _member(policies, IN_BYTES)
    return json_response(policies.offload_threshold if own is None else own)


async def set_threshold(call: Call) -> Response:
    await _set(call, IN_BYTES)
    return no_content()


async def get_threshold_in_seconds(call: Call) -> Response:
    """-1: never by age."""
    policies = _policies(call)
    own = _member(policies, IN_SECONDS)
    return json_response(policies.offload_threshold_in_seconds if own is None else own)


async def set_threshold_in_seconds(call: Call) -> Response:
    await _set(call, IN_SECONDS)
    return empty_ok()


async def get_deletion_lag(call: Call) -> Response:
    """How long a ledger stays here after it was moved."""
    policies = _policies(call)
    own = _member(policies, LAG_MS)
    shown = policies.offload_deletion_lag_ms if own is None else own
    return empty_ok() if shown is None else json_response(shown)


async def set_deletion_lag(call: Call) -> Response:
    await _set(call, LAG_MS)
    return no_content()


async def remove_deletion_lag(call: Call) -> Response:
    await _store(call, administered_namespace(call), LAG_MS, None)
    return no_content()


async def _set(call: Call, member: str) -> None:
    namespace = administered_namespace(call)
    await _store(call, namespace, member, await call.json(Long))


async def _store(call: Call, namespace: NamespaceName, member: str, value: int | None) -> None:
    def change(policies: NamespacePolicies) -> None:
        policies.offload_policies = policies.offload_policies or OffloadPolicies()
        setattr(policies.offload_policies, member, value)

    await call.resources.update_namespace(namespace, change)


def _member(policies: NamespacePolicies, member: str) -> int | None:
    value: int | None = getattr(policies.offload_policies, member, None)
    return value


def _policies(call: Call) -> NamespacePolicies:
    return existing_namespace(call, administered_namespace(call))
