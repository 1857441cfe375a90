"""Operations on topics that other brokers of the cluster serve, over their REST API."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import quote

from pybroker.cluster.ownership.bundle_ownership import OwnerKind
from pybroker.errors import AdminError, ServiceNotReady, TopicNotFound

if TYPE_CHECKING:
    from pybroker.broker.lifecycle.other_brokers import OtherBrokers
    from pybroker.cluster.ownership.bundle_ownership import BundleOwnership
    from pybroker.model.names import TopicName


CREATE_ATTEMPTS = 50
"""Attempts to use a partition that was just added, because the other broker reads the new partition count with a delay."""
CREATE_PAUSE_S = 0.1


class OwnersTopics:
    """Implementation of `TopicsElsewhere` for a broker in a cluster."""

    def __init__(self, ownership: BundleOwnership, others: OtherBrokers) -> None:
        self._ownership = ownership
        self._others = others

    async def serves(self, topic: TopicName) -> bool:
        return await self._owner_url(topic) is not None

    async def delete(self, topic: TopicName, *, force: bool) -> bool:
        url = await self._owner_url(topic)
        if url is None:
            return False
        try:
            await self._others.call(url, "DELETE", f"{_path(topic)}?force={'true' if force else 'false'}")
        except AdminError as error:
            raise _as_found(error, topic) from error
        return True

    async def subscriptions(self, topic: TopicName) -> Mapping[str, Mapping[str, str]] | None:
        url = await self._owner_url(topic)
        if url is None:
            return None
        try:
            stats = await self._others.call(url, "GET", f"{_path(topic)}/stats")
        except AdminError as error:
            raise _as_found(error, topic) from error
        return {
            name: each.get("subscriptionProperties") or {}
            for name, each in stats["subscriptions"].items()
            if each.get("durable", False)
        }

    async def create_subscription(self, topic: TopicName, name: str, properties: Mapping[str, str]) -> None:
        path = f"{_path(topic)}/subscription/{quote(name, safe='')}"
        body = {"ledgerId": -1, "entryId": -1, "properties": dict(properties)}
        for attempt in range(CREATE_ATTEMPTS):
            # The current owner, which may have become this broker.
            owner = await self._ownership.owner_of(topic, None, is_authoritative=False)
            urls = self._ownership.registry.own_broker.addresses if owner.kind is OwnerKind.HERE else owner.urls
            try:
                await self._others.call(urls.http_url or urls.http_url_tls, "PUT", path, body)
            except AdminError as error:
                if error.status == HTTPStatus.CONFLICT:
                    return
                if error.status != HTTPStatus.NOT_FOUND or attempt == CREATE_ATTEMPTS - 1:
                    raise
                await asyncio.sleep(CREATE_PAUSE_S)
            else:
                return

    async def _owner_url(self, topic: TopicName) -> str | None:
        """Return the REST URL of the topic's owner, or of the broker that assigns an owner; None if this broker serves
        the topic.
        """
        owner = await self._ownership.owner_of(topic, None, is_authoritative=False)
        if owner.kind is OwnerKind.HERE:
            return None
        url = owner.urls.http_url or owner.urls.http_url_tls
        if not url:
            raise ServiceNotReady(f"the broker that owns topic {topic} has no HTTP address")
        return url


def _path(topic: TopicName) -> str:
    return f"/admin/v2/{topic.domain}/{topic.namespace}/{quote(topic.local_name, safe='')}"


def _as_found(error: AdminError, topic: TopicName) -> AdminError | TopicNotFound:
    return TopicNotFound(f"Topic {topic} not found") if error.status == HTTPStatus.NOT_FOUND else error
