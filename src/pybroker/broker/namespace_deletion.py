"""Deleting a namespace: its topics, partitioned ones included, then the namespace itself.

What must hold: from the mark on nobody makes or opens a topic there; a namespace that a crash kept from going is still
there, marked, and can be deleted again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker import logs
from pybroker.errors import AdminError, TopicNotFound
from pybroker.model.names import DOMAINS, NamespaceName, TopicName
from pybroker.model.policies import NamespacePolicies

if TYPE_CHECKING:
    from pybroker.broker.service import BrokerService


async def delete_namespace(service: BrokerService, namespace: NamespaceName, force: bool) -> None:
    """Drop `namespace`; with topics of users in it only when forced. Raises AdminError, StoreError."""
    if service.resources.namespace(namespace) is None:
        raise AdminError(404, f"Namespace {namespace} does not exist")
    if force and not service.config.force_delete_namespace_allowed:
        raise AdminError(405, "Broker doesn't allow forced deletion of namespaces (forceDeleteNamespaceAllowed)")
    if not force:
        await _require_empty(service, namespace)
    await _mark(service, namespace, deleted=True)
    if not force:
        try:
            await _require_empty(service, namespace)  # Somebody may have come before the mark.
        except AdminError:
            await _mark(service, namespace, deleted=False)
            raise
    for topic in _partitioned(service, namespace):
        await service.partitioned_operations.delete(topic, force=True)
    for text in await service.directory.list(namespace, None, include_system=True):
        try:
            await service.delete_topic(TopicName.parse(text), force=True)
        except TopicNotFound:
            logs.info("topic.deleted_meanwhile", topic=text)
    await service.schemas.drop_namespace(namespace)  # Also those of topics that nobody ever made.
    await service.resources.delete_namespace(namespace)


async def _require_empty(service: BrokerService, namespace: NamespaceName) -> None:
    topics = await service.directory.list(namespace, None)
    if topics or _partitioned(service, namespace):
        raise AdminError(409, "Cannot delete non empty namespace")


def _partitioned(service: BrokerService, namespace: NamespaceName) -> list[TopicName]:
    return [topic for domain in DOMAINS for topic in service.partitioned.names(namespace, domain)]


async def _mark(service: BrokerService, namespace: NamespaceName, *, deleted: bool) -> None:
    def change(policies: NamespacePolicies) -> None:
        policies.deleted = deleted

    await service.resources.update_namespace(namespace, change)
