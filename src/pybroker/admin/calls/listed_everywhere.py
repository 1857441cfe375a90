"""List of a namespace's topics in a cluster. Non-persistent topics are known only to the brokers that serve them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.admin.calls.existing_namespaces import listed_topics
from pybroker.admin.calls.redirects import base_url
from pybroker.cluster.ownership.bundle_ownership import BundleUnloading, OwnerKind
from pybroker.model.names import PERSISTENT
from pybroker.runtime.tasks import all_results

if TYPE_CHECKING:
    from pybroker.admin.calls.call import Call
    from pybroker.cluster.ownership.bundle_ownership import BundleOwnership
    from pybroker.cluster.ownership.namespace_bundle import NamespaceBundle
    from pybroker.model.names import NamespaceName


async def listed_everywhere(
    call: Call, namespace: NamespaceName, domain: str | None, *, include_system: bool = False
) -> list[str]:
    """Return the full names of the namespace's topics in one domain, or in both if `domain` is None, including the
    non-persistent topics at other brokers.

    Raises AdminError or ServiceNotReady if a broker does not respond.
    """
    names = await listed_topics(call, namespace, domain, include_system=include_system)
    ownership = call.broker.ownership
    if ownership is None or domain == PERSISTENT:
        return names
    found = await all_results(_elsewhere(call, ownership, each) for each in ownership.bundles_of(namespace))
    return sorted({*names, *(name for each in found for name in each)})


async def _elsewhere(call: Call, ownership: BundleOwnership, bundle: NamespaceBundle) -> list[str]:
    """Return the non-persistent topics of a bundle that another broker owns."""
    try:
        owner = await ownership.present_owner(bundle)
    except BundleUnloading:
        return []
    if owner is None or owner.kind is OwnerKind.HERE:
        return []
    others = call.broker.other_brokers
    assert others is not None, "a broker with other owners has it"
    url = base_url(owner.urls, call.scope["scheme"])
    found = await others.call(url, "GET", f"/admin/v2/non-persistent/{bundle.namespace}/{bundle.range}")
    return [str(name) for name in found or ()]
