"""Deleting a namespace: its topics, partitioned ones included, then the namespace itself.

What must hold:
- From the mark on nobody begins to make or open a topic there. Who had begun to make one has made it, or failed, before the topics
  are looked for: none comes into being behind the deletion's back, none is left when the namespace is gone, crash or not.
- A client that wants a topic there waits until the deletion is over, and then learns that the namespace is gone, or goes on.
- A namespace that a crash kept from going is still there, marked, and can be deleted again; when that is refused because it is
  not empty, it is as it was before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker import logs
from pybroker.broker.waiting import Turns
from pybroker.errors import AdminError, TopicNotFound
from pybroker.model.names import DOMAINS, NamespaceName, TopicName
from pybroker.model.policies import NamespacePolicies

if TYPE_CHECKING:
    from pybroker.broker.service import BrokerService

_NOT_FOUND = 404


class NamespaceDeletion:
    """Owned by the broker service."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        self._turns: Turns[NamespaceName] = Turns(service.waiting)

    def is_under_way(self, namespace: NamespaceName) -> bool:
        """Whether `namespace` is being deleted now."""
        return self._turns.is_taken(namespace)

    async def passed(self, namespace: NamespaceName) -> None:
        """Wait, in order of arrival, until `namespace` is not being deleted."""
        await self._turns.passed(namespace)

    async def delete(self, namespace: NamespaceName, force: bool) -> None:
        """Drop `namespace`; with topics of users in it only when forced. Raises AdminError, StoreError, TooManyRequests."""
        async with self._turns.turn(namespace):
            await self._delete(namespace, force)

    async def _delete(self, namespace: NamespaceName, force: bool) -> None:
        service = self._service
        if service.resources.namespace(namespace) is None:
            raise AdminError(_NOT_FOUND, f"Namespace {namespace} does not exist.")
        if force and not service.surroundings.config.force_delete_namespace_allowed:
            raise AdminError(405, "Broker doesn't allow forced deletion of namespaces (forceDeleteNamespaceAllowed)")
        try:
            if not force:
                await self._require_empty(namespace)  # It need not be marked for that.
            await self._mark(namespace, deleted=True)
            await service.creation.quiet(namespace)
            if not force:
                await self._require_empty(namespace)
        except AdminError:
            policies = service.resources.namespace(namespace)
            if policies is not None and policies.deleted:
                await self._mark(namespace, deleted=False)
            raise
        for topic in self._partitioned(namespace):
            try:
                await service.partitioned_operations.delete(topic, force=True)
            except AdminError as error:
                if error.status != _NOT_FOUND:
                    raise
                logs.info("partitioned_topic.deleted_meanwhile", topic=topic)
        for text in await service.directory.list(namespace, None, include_system=True):
            try:
                await service.delete_topic(TopicName.parse(text), force=True)
            except TopicNotFound:
                logs.info("topic.deleted_meanwhile", topic=text)
        await service.schemas.drop_namespace(namespace)  # Also those of topics that nobody ever made.
        await service.resources.delete_namespace(namespace)

    async def _require_empty(self, namespace: NamespaceName) -> None:
        topics = await self._service.directory.list(namespace, None)
        if topics or self._partitioned(namespace):
            raise AdminError(409, "Cannot delete non empty namespace")

    def _partitioned(self, namespace: NamespaceName) -> list[TopicName]:
        partitioned = self._service.partitioned
        return [topic for domain in DOMAINS for topic in partitioned.names(namespace, domain)]

    async def _mark(self, namespace: NamespaceName, *, deleted: bool) -> None:
        def change(policies: NamespacePolicies) -> None:
            policies.deleted = deleted

        await self._service.resources.update_namespace(namespace, change)
